//! Puts what happens in a run on the job's timeline: from the run's journal, so that each event stands there once, whatever
//! was killed in between. Deltas go past both.

use agent::records::Entry;
use agent::{Books, Change as RunChange, Event, Happened, Part, RunId, Watcher};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;
use workspace::ledger::Usd;

use crate::body::{self, Body};
use crate::chain;
use crate::error::StudioError;
use crate::id::{JobId, ScreenshotId};
use crate::records::{Change, Held, NewPicture};
use crate::studio::Studio;

/// Narrower pictures are of telephones.
const DESKTOP: u32 = 600;

pub(super) struct Copier {
    studio: Studio,
    job: JobId,
    attempt: i64,
    run: RunId,
    books: Books,
    /// Entries of the journal that stand on the timeline.
    copied: u64,
    /// Is told the number of each phase that ends.
    phases: UnboundedSender<u64>,
}

impl Copier {
    pub(super) fn new(
        studio: &Studio,
        job: &JobId,
        attempt: i64,
        books: Books,
        copied: u64,
        phases: UnboundedSender<u64>,
    ) -> Self {
        Self { studio: studio.clone(), job: job.clone(), attempt, run: books.run.clone(), books, copied, phases }
    }

    /// Copies until the run tells no more. What could not be copied, the next call copies.
    pub(super) async fn follow(&mut self, mut watcher: Watcher) {
        while let Some(happened) = watcher.next().await {
            if happened.event.is_delta() {
                if let Some(body) = to_body(&happened) {
                    self.studio.inner.timeline.delta(&self.job, body);
                }
            } else if let Err(error) = self.copy().await {
                warn!(job = %self.job, error = %chain(&error), "the timeline is behind");
            }
        }
    }

    /// Copies what the journal has and the timeline has not. Nothing once another worker has the job.
    pub(super) async fn copy(&mut self) -> Result<(), StudioError> {
        loop {
            let entries = self.studio.inner.runs.entries(&self.run, self.copied).await;
            let entries = entries.map_err(StudioError::unavailable)?;
            if entries.is_empty() || self.write(entries).await? {
                return Ok(());
            }
            // Another worker has the job; or these were written before, and the answer was lost on its way.
            let job = self.studio.records().job(&self.job).await?;
            match job.filter(|job| job.attempt == self.attempt && job.run_entries > self.copied) {
                Some(job) => self.copied = job.run_entries,
                None => return Ok(()),
            }
        }
    }

    /// False when nothing was written, since others have been.
    async fn write(&mut self, entries: Vec<Entry>) -> Result<bool, StudioError> {
        let to = self.copied + u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let mut change = Change { run_entries: Some((self.copied, to)), ..Change::default() };
        let (mut events, mut finished) = (Vec::new(), Vec::new());
        for entry in entries {
            let at = entry.happened.ts;
            self.books.note(&entry.happened).await;
            let Some(mut body) = to_body(&entry.happened) else { continue };
            if let Event::ToolCallFinished { .. } = entry.happened.event {
                body.insert("images".to_owned(), self.keep_pictures(&entry).await?);
            }
            events.push((at, body));
            if let Event::Usage { total_cost_usd: Some(total), .. } = entry.happened.event {
                change.cost_nanos = Usd::from_dollars(total).map(Usd::nanos).or(change.cost_nanos);
                events.push((at, body::cost(total)));
            }
            if let Event::Usage { .. } = entry.happened.event {
                // The model has taken a turn: whatever broke off before is overcome.
                change.progress = true;
            }
            if let Event::PhaseFinished { phase, .. } = entry.happened.event {
                finished.push(phase);
            }
            if let Event::PhaseStarted { phase, of, goal } = &entry.happened.event {
                change.stage_label = Some(format!("Phase {phase} of {of}: {goal}"));
            }
        }
        let copied = self.studio.records().change(&self.job, Held::By(self.attempt), change, events).await?;
        if copied.is_none() {
            return Ok(false);
        }
        self.copied = to;
        for phase in finished {
            // Without a receiver there are no pictures.
            let _ = self.phases.send(phase);
        }
        self.studio.inner.timeline.caught_up(&self.job).await;
        Ok(true)
    }

    /// The pictures of a call as the timeline shows them: by where they are.
    async fn keep_pictures(&self, entry: &Entry) -> Result<Value, StudioError> {
        let (Event::ToolCallFinished { images, tool, .. }, Some(RunChange::CallEnded { ended })) =
            (&entry.happened.event, &entry.change)
        else {
            return Ok(json!([]));
        };
        let pictures = ended.outcome.content.iter().filter_map(|part| match part {
            Part::Image { media_type, data } => Some((media_type, data)),
            _ => None,
        });
        let mut urls = Vec::new();
        for (number, (image, (media_type, data))) in images.iter().zip(pictures).enumerate() {
            let Ok(content) = STANDARD.decode(data) else { continue };
            let kept = self.studio.records().keep_picture(
                &self.job,
                NewPicture {
                    // A worker that was killed before it could tell of them has kept them already.
                    id: ScreenshotId::of(&format!("{}/{}/{number}", self.run, entry.happened.seq)),
                    device: if image.width < DESKTOP { "mobile" } else { "desktop" }.to_owned(),
                    width: image.width,
                    height: image.height,
                    reason: tool.clone(),
                    media_type: media_type.clone(),
                    content: content.into(),
                },
            );
            urls.push(kept.await?.id.url(&self.job));
        }
        Ok(json!(urls))
    }
}

/// As the timeline has it: with the turn, since the numbers of a run are not the timeline's.
fn to_body(happened: &Happened) -> Option<Body> {
    let Ok(Value::Object(mut body)) = serde_json::to_value(&happened.event) else { return None };
    body.insert("turn".to_owned(), happened.turn.into());
    Some(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn what_is_for_eyes_only_has_its_turn_like_all_else() {
        let text = || "Hello".to_owned();
        for event in
            [Event::TextDelta { text: text() }, Event::ThinkingDelta { text: text() }, Event::Message { text: text() }]
        {
            let happened = Happened { seq: 9, ts: Timestamp::UNIX_EPOCH, turn: 3, dropped: 0, event };
            let body = to_body(&happened).expect("an object");
            assert_eq!((&body["turn"], &body["text"], body.get("seq")), (&json!(3), &json!("Hello"), None), "{body:?}");
        }
    }
}
