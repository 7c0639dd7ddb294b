"""A new family, StarCoder2: one row with the names of its modules, tried on a small untrained model."""

import arithscope
from arithscope.models.engine.replay import check_replay
from arithscope.models.families import FAMILIES, Architecture
from arithscope.models.model import Identity
from arithscope.models.untrained import number_tokenizer, untrained_model

# As in Llama, except for an MLP without a gate.
FAMILIES["starcoder2"] = Architecture(mlp_down="mlp.c_proj", mlp_activation="mlp.act", gated=False)

tokenizer = number_tokenizer(100)
sizes = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)
hf_model = untrained_model("starcoder2", sizes, tokenizer)
model = arithscope.Model(hf_model, tokenizer, Identity("small starcoder2", "", "", ""))
print(model)
print("replay differs by", check_replay(model, model.encode(model.encoder.examples())))

lab = arithscope.Lab(model, operators="+", max_operand=20)
print(lab.accuracy.table)
