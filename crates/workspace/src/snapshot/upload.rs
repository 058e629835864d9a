//! Objects of any size on their way to a store: in parts that are joined at the end, and small ones by one request.

use std::time::Duration;

use bytes::BytesMut;
use object_store::path::Path as Key;
use object_store::{ObjectStore as _, PutMultipartOptions, WriteMultipart};

use super::store::{Objects, StoreError};

/// S3 wants at least 5 MiB and at most 10,000 of them: this allows 80 GB.
const PART: usize = 8 * 1024 * 1024;
/// Parts on their way at once, so that a connection is never idle.
const PARTS: usize = 2;
/// What may be written before the room on a directory's disk is measured again.
const IN_FLIGHT: u64 = (PART * (PARTS + 1)) as u64;
/// How long an upload that is given up waits for the parts on their way.
const SETTLE: Duration = Duration::from_secs(5);

/// An object on its way in. It is there once [`Upload::finish`] says so; dropping it leaves none.
pub struct Upload {
    objects: Objects,
    key: Key,
    /// Until there is enough for a first part.
    first: BytesMut,
    parts: Option<WriteMultipart>,
    /// Sent since the room on a directory's disk was last measured.
    unmeasured: usize,
}

impl Upload {
    pub(super) fn begin(objects: Objects, key: Key) -> Self {
        Self { objects, key, first: BytesMut::new(), parts: None, unmeasured: 0 }
    }

    /// Takes the next bytes, when the store has come far enough for that.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match &mut self.parts {
            Some(parts) => {
                self.objects.in_time("store", &self.key, parts.wait_for_capacity(PARTS)).await?;
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
                    let upload = self.objects.in_time("begin to store", &self.key, begun).await?;
                    let mut parts = WriteMultipart::new_with_chunk_size(upload, PART);
                    parts.put(self.first.split().freeze());
                    self.parts = Some(parts);
                }
            }
        }
        Ok(())
    }

    /// A part of it may be with the store.
    pub(super) fn is_under_way(&self) -> bool {
        self.parts.is_some()
    }

    /// Makes the object appear, whole.
    pub async fn finish(self) -> Result<(), StoreError> {
        let Self { objects, key, first, parts, .. } = self;
        match parts {
            None => objects.create(&key, first.freeze()).await,
            Some(mut parts) => {
                if let Err(error) = while_parts_are_out(&objects, &key, &mut parts).await {
                    discard(&objects, &key, parts).await;
                    return Err(error);
                }
                objects.in_time("complete", &key, parts.finish()).await?;
                objects.make_private(&key);
                Ok(())
            }
        }
    }

    /// Gives up and takes back what was sent, as far as that can be done.
    pub async fn abort(self) {
        if let Some(parts) = self.parts {
            discard(&self.objects, &self.key, parts).await;
        }
    }
}

/// Aborts the multipart upload. A part that a blocking thread still writes keeps the staged file of a directory open,
/// and with it the file's space, so the parts end first; a store that hangs is not waited for longer than
/// [`SETTLE`].
async fn discard(objects: &Objects, key: &Key, mut parts: WriteMultipart) {
    let settled = async {
        // Each failed part ends one wait, so there are at most as many failures as parts.
        while parts.wait_for_capacity(0).await.is_err() {}
    };
    let _ = tokio::time::timeout(SETTLE, settled).await;
    if let Err(error) = objects.in_time("give up", key, parts.abort()).await {
        tracing::warn!(key = %key, error = %error, "an unfinished upload may be left in the store");
    }
}

/// Each part has its own time.
async fn while_parts_are_out(objects: &Objects, key: &Key, parts: &mut WriteMultipart) -> Result<(), StoreError> {
    for most in (1..=PARTS).rev() {
        objects.in_time("store", key, parts.wait_for_capacity(most)).await?;
    }
    Ok(())
}
