//! The server: `GET /rows/7` answers with a row, `GET /rows/7,1,9` with several, `GET /` with how many there are.

use std::sync::Arc;

use anyhow::Result;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::source::Source;

/// The most rows that one request may ask for.
const IDS_MAX: usize = 1024;

/// Serves until the process ends.
pub async fn serve(source: Source, listener: TcpListener) -> Result<()> {
    let routes = Router::new().route("/", get(count)).route("/rows/{ids}", get(rows));
    axum::serve(listener, routes.with_state(Arc::new(source))).await?;
    Ok(())
}

async fn count(State(source): State<Arc<Source>>) -> String {
    format!("{}\n", source.rows())
}

async fn rows(State(source): State<Arc<Source>>, Path(ids): Path<String>) -> Response {
    let ids: Vec<u64> = match ids.split(',').map(str::parse).collect() {
        Ok(ids) => ids,
        Err(_) => return no(StatusCode::BAD_REQUEST, format!("{ids:?} is not a list of numbers, as in 7,1,9")),
    };
    if ids.len() > IDS_MAX {
        return no(StatusCode::BAD_REQUEST, format!("{} rows at a time: ask for at most {IDS_MAX}", ids.len()));
    }
    if let Some(id) = ids.iter().find(|id| **id >= source.rows()) {
        return no(StatusCode::NOT_FOUND, format!("no row {id}: there are {}, from 0 on", source.rows()));
    }
    match source.read(&ids).await {
        Ok(bytes) => bytes.into_response(),
        Err(error) => {
            eprintln!("http-rows: cannot read {ids:?}: {error:#}");
            no(StatusCode::INTERNAL_SERVER_ERROR, "the file cannot be read".into())
        }
    }
}

fn no(status: StatusCode, why: String) -> Response {
    (status, why + "\n").into_response()
}
