use super::*;
use axum::http::HeaderMap;
pub(super) async fn create(
    _: &State,
    _: crate::api::Kind,
    _: Option<&str>,
    _: &HeaderMap,
    _: &Query,
    _: Body,
) -> Result<Response, Failure> {
    Err(Failure::internal("x"))
}
pub(super) async fn change(
    _: &State,
    _: &Item,
    _: crate::api::Kind,
    _: &Query,
    _: Request,
) -> Result<Response, Failure> {
    Err(Failure::internal("x"))
}
