"""A family that is not supported yet, StarCoder2: one row that says where its modules are, tried on a small untrained model."""

import arithscope
from arithscope.subject.architectures import FAMILIES, Architecture
from arithscope.subject.fresh import fresh_model, number_tokenizer
from arithscope.subject.replay import check_replay
from arithscope.subject.subject import Identity

# As in Llama, but for an MLP without a gate.
FAMILIES["starcoder2"] = Architecture(mlp_down="mlp.c_proj", mlp_activation="mlp.act", gated=False)

tokenizer = number_tokenizer(100)
sizes = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)
model = fresh_model("starcoder2", sizes, tokenizer)
subject = arithscope.Subject(model, tokenizer, Identity("small starcoder2", "", "", ""))
print(subject)
print("replay differs by", check_replay(subject, subject.encode(subject.encoder.examples())))

lab = arithscope.Lab(subject, operators="+", max_operand=20)
print(lab.accuracy.table)
