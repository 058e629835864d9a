//! Uploads objects of any size: large ones in parts, small ones by one request.

use std::time::Duration;

use bytes::BytesMut;
use object_store::path::Path as Key;
use object_store::{ObjectStore as _, PutMultipartOptions, WriteMultipart};

use crate::store::{ObjectStoreError, Objects};

/// S3 requires parts of at least 5 MiB and allows 10,000 of them: this allows 80 GB.
const PART: usize = 8 * 1024 * 1024;
/// Parts in flight, so that the connection is never idle.
const PARTS: usize = 2;
/// Bytes that may be written between two checks of the free disk space.
const IN_FLIGHT: u64 = (PART * (PARTS + 1)) as u64;
/// How long an aborted upload waits for parts in flight.
const SETTLE: Duration = Duration::from_secs(5);

/// An upload in progress. The object exists once [`Upload::finish`] succeeds; dropping it leaves
/// none.
pub struct Upload {
    objects: Objects,
    key: Key,
    /// Buffered until there is enough for a first part.
    first: BytesMut,
    parts: Option<WriteMultipart>,
    /// Bytes sent since the free disk space was last checked.
    unmeasured: usize,
}

impl Upload {
    pub(crate) fn begin(objects: Objects, key: Key) -> Self {
        Self { objects, key, first: BytesMut::new(), parts: None, unmeasured: 0 }
    }

    /// Sends bytes, with backpressure from the store.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), ObjectStoreError> {
        match &mut self.parts {
            Some(parts) => {
                self.objects.with_deadline("store", &self.key, parts.wait_for_capacity(PARTS)).await?;
                parts.write(bytes);
                self.unmeasured += bytes.len();
                if self.unmeasured >= PART {
                    self.unmeasured = 0;
                    self.objects.reserve(&self.key, IN_FLIGHT)?;
                }
            }
            None => {
                self.first.extend_from_slice(bytes);
                if self.first.len() >= PART {
                    self.objects.reserve(&self.key, IN_FLIGHT)?;
                    let options = PutMultipartOptions {
                        attributes: self.objects.attributes(&self.key),
                        ..PutMultipartOptions::default()
                    };
                    let begun = self.objects.store.put_multipart_opts(&self.key, options);
                    let upload = self.objects.with_deadline("begin to store", &self.key, begun).await?;
                    let mut parts = WriteMultipart::new_with_chunk_size(upload, PART);
                    parts.put(self.first.split().freeze());
                    self.parts = Some(parts);
                }
            }
        }
        Ok(())
    }

    /// Whether a part may have reached the store.
    pub(crate) fn is_under_way(&self) -> bool {
        self.parts.is_some()
    }

    /// Completes the upload: the object appears atomically.
    pub async fn finish(self) -> Result<(), ObjectStoreError> {
        let Self { objects, key, first, parts, .. } = self;
        match parts {
            None => objects.create(&key, first.freeze()).await,
            Some(mut parts) => {
                if let Err(error) = while_parts_are_out(&objects, &key, &mut parts).await {
                    discard(&objects, &key, parts).await;
                    return Err(error);
                }
                objects.with_deadline("complete", &key, parts.finish()).await?;
                objects.make_private(&key);
                Ok(())
            }
        }
    }

    /// Aborts the upload, best effort.
    pub async fn abort(self) {
        if let Some(parts) = self.parts {
            discard(&self.objects, &self.key, parts).await;
        }
    }
}

/// Aborts the multipart upload. A part that a blocking thread still writes keeps the staged file of
/// a directory open, and with it the file's space, so the parts end first. A store that hangs
/// delays this by at most [`SETTLE`].
async fn discard(objects: &Objects, key: &Key, mut parts: WriteMultipart) {
    let settled = async {
        // Each failed part ends one wait, so there are at most as many failures as parts.
        while parts.wait_for_capacity(0).await.is_err() {}
    };
    let _ = tokio::time::timeout(SETTLE, settled).await;
    if let Err(error) = objects.with_deadline("give up", key, parts.abort()).await {
        tracing::warn!(key = %key, error = %error, "an unfinished upload may be left in the store");
    }
}

/// Each part has its own timeout.
async fn while_parts_are_out(objects: &Objects, key: &Key, parts: &mut WriteMultipart) -> Result<(), ObjectStoreError> {
    for most in (1..=PARTS).rev() {
        objects.with_deadline("store", key, parts.wait_for_capacity(most)).await?;
    }
    Ok(())
}
