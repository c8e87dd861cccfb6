"""Families whose encoder runs packed: model_type -> module. A family is one file here and its lines in the table.

A model type that is not listed runs padded, or by equal lengths where padding changes its results.
"""

from importlib import import_module

from padserve.models.families.base import Family

FAMILIES: dict[str, str] = {
    "albert": "albert",
    "bert": "bert",
    "camembert": "roberta",
    "data2vec-text": "roberta",
    "deberta-v2": "deberta_v2",
    "distilbert": "distilbert",
    "electra": "electra",
    "ernie": "stock",
    "esmc": "stock",
    "eurobert": "eurobert",
    "gte": "stock",
    "jina_embeddings_v3": "stock",
    "layoutlm": "stock",
    "modernbert": "modernbert",
    "mpnet": "mpnet",
    "mt5": "t5",
    "nomic_bert": "stock",
    "roberta": "roberta",
    "roberta-prelayernorm": "roberta_prelayernorm",
    "roc_bert": "stock",
    "t5": "t5",
    "umt5": "t5",
    "xlm-roberta": "roberta",
    "xlm-roberta-xl": "roberta_prelayernorm",
}


def find_family(model_type: str) -> Family | None:
    """The family of a model type, None where it has none."""
    module = FAMILIES.get(model_type)
    if module is None:
        return None
    family: Family = import_module(f"padserve.models.families.{module}").FAMILY
    return family
