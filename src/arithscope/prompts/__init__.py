"""Arithmetic prompts: operators, exact answers, legality, samples and counterfactuals. Independent of model and tokenizer."""

from arithscope.prompts.operands import Operands as Operands
from arithscope.prompts.operands import checked_operands as checked_operands
from arithscope.prompts.operands import operands_of_digits as operands_of_digits
from arithscope.prompts.operands import parse_operands as parse_operands
from arithscope.prompts.parse import parse_in_stratum as parse_in_stratum
from arithscope.prompts.parse import parse_prompt as parse_prompt
from arithscope.prompts.samples import counterfactuals as counterfactuals
from arithscope.prompts.samples import disjoint_samples as disjoint_samples
from arithscope.prompts.samples import random_source as random_source
from arithscope.prompts.samples import sample as sample
from arithscope.prompts.stratum import Layout as Layout
from arithscope.prompts.stratum import Stratum as Stratum
from arithscope.prompts.stratum import legal_prompts as legal_prompts
from arithscope.prompts.stratum import operand_grid as operand_grid
from arithscope.prompts.stratum import place_name as place_name
from arithscope.prompts.stratum import power_name as power_name
from arithscope.prompts.stratum import stratum_from_json as stratum_from_json
from arithscope.prompts.stratum import whole_numbers as whole_numbers
from arithscope.prompts.table import OPERATORS as OPERATORS
from arithscope.prompts.table import UNDEFINED as UNDEFINED
from arithscope.prompts.table import Ints as Ints
from arithscope.prompts.table import Place as Place
from arithscope.prompts.table import Prompts as Prompts
from arithscope.prompts.table import concatenate_prompts as concatenate_prompts
from arithscope.prompts.table import operator_indices as operator_indices
from arithscope.prompts.template import Template as Template
