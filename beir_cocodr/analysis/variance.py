"""An MRL's own prediction of how well a query will do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import load_collection


def variance_predictors(
    model: str, dataset: str, split: str = "test", **encoder: Any
) -> dict[str, dict[str, float]]:
    """‖σ_q²‖₂ and Σ log σ_q² of every query, for a saved MRL; nothing for other models.

    Args:
        model: as the command line names it.
        dataset, split: whose queries.
        **encoder: overrides for loading the model, None meaning none.

    Returns:
        Predictor to query id to value.

    Source: MRL, section 4.4 and Table 6.
    """
    if not Path(model).is_dir():
        return {}
    # Imported here because BM25's queries must not wait six seconds for torch.
    from beir_cocodr.models.loading import load_encoder
    from beir_cocodr.models.mrl import MRL

    encoder_model = load_encoder(model, **encoder)
    if not isinstance(encoder_model, MRL):
        return {}
    queries = load_collection(dataset, split).queries
    _, variance = encoder_model.encode_distribution(list(queries.values()), "query")
    wide = variance.double().cpu()
    return {
        "‖σ²‖": dict(zip(queries, wide.norm(dim=1).tolist(), strict=True)),
        "Σ log σ²": dict(zip(queries, wide.log().sum(dim=1).tolist(), strict=True)),
    }
