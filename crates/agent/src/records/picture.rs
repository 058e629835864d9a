//! The pictures that tools have given: they are in the record of the call that gave them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::port::{RunId, RunRecords, RunRecordsError};
use crate::change::Change;
use crate::message::Part;

/// A picture as its file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pub media_type: String,
    pub bytes: Vec<u8>,
}

/// The picture at `index` among those that a call gave, from 0: the order of the images in its `tool_call_finished`.
///
/// # Errors
/// The records cannot be read.
pub async fn picture(
    records: &dyn RunRecords,
    run: &RunId,
    call: &str,
    index: usize,
) -> Result<Option<Picture>, RunRecordsError> {
    let told = records.of_call(run, call).await?;
    let parts = told.iter().find_map(|entry| match &entry.change {
        Some(Change::CallEnded { ended }) => Some(&ended.outcome.content),
        _ => None,
    });
    let mut pictures = parts.into_iter().flatten().filter_map(|part| match part {
        Part::Image { media_type, data } => Some((media_type, data)),
        _ => None,
    });
    let Some((media_type, data)) = pictures.nth(index) else { return Ok(None) };
    let bytes = STANDARD.decode(data).map_err(|error| RunRecordsError { what: "understand", source: error.into() })?;
    Ok(Some(Picture { media_type: media_type.clone(), bytes }))
}
