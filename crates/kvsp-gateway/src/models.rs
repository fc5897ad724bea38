//! `GET v1/models` and `GET v1/models/{model}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use kvsp_openai::{ApiError, ModelEntry, ModelList};

use crate::Gateway;
use crate::error::Refusal;

fn entry(gateway: &Gateway) -> ModelEntry {
    ModelEntry {
        id: gateway.served_name.clone(),
        object: "model".into(),
        created: gateway.started_s,
        owned_by: "kvsp".into(),
    }
}

/// All models.
pub(crate) async fn list(State(gateway): State<Arc<Gateway>>) -> Json<ModelList> {
    Json(ModelList { object: "list".into(), data: vec![entry(&gateway)] })
}

/// One model. Names hold slashes, so the path is everything that follows.
pub(crate) async fn one(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
) -> Result<Json<ModelEntry>, Refusal> {
    if name == gateway.served_name {
        Ok(Json(entry(&gateway)))
    } else {
        Err(ApiError::ModelNotFound(name).into())
    }
}
