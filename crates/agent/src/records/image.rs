//! Reads the images of tool results, which are stored in the journal entry of their call.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::port::{RunId, RunRecords, RunRecordsError};
use crate::change::Change;
use crate::message::Part;

/// An image file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    pub media_type: String,
    pub bytes: Vec<u8>,
}

/// The image at `index` among those of a call, from 0, in the order of its `tool_call_finished`.
///
/// # Errors
/// [`RunRecordsError`] if the records cannot be read.
pub async fn load_image(
    records: &dyn RunRecords,
    run: &RunId,
    call: &str,
    index: usize,
) -> Result<Option<StoredImage>, RunRecordsError> {
    let entries = records.entries_of_call(run, call).await?;
    let parts = entries.iter().find_map(|entry| match &entry.change {
        Some(Change::CallEnded { ended }) => Some(&ended.outcome.content),
        _ => None,
    });
    let mut images = parts.into_iter().flatten().filter_map(|part| match part {
        Part::Image { media_type, data } => Some((media_type, data)),
        _ => None,
    });
    let Some((media_type, data)) = images.nth(index) else { return Ok(None) };
    let bytes = STANDARD.decode(data).map_err(|error| RunRecordsError { what: "understand", source: error.into() })?;
    Ok(Some(StoredImage { media_type: media_type.clone(), bytes }))
}
