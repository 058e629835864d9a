//! Copies a run's events to the job's timeline. It reads them from the run's journal, so that each
//! event is copied exactly once, across kills. Deltas bypass both.

use agent::records::JournalEntry;
use agent::{Change as RunChange, Event, Image, Part, RunId, UsageRecorder, Watcher};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;
use workspace::ledger::Usd;

use crate::error::StudioError;
use crate::events::{EventBody, StudioEvent, TimelineEventKind};
use crate::id::{JobId, ScreenshotId};
use crate::records::{Change, NewScreenshot, Precondition};
use crate::studio::Studio;
use text::error_chain;

/// Narrower screenshots are of a mobile viewport.
const DESKTOP: u32 = 600;

pub(super) struct JournalCopier {
    studio: Studio,
    job: JobId,
    attempt: i64,
    run: RunId,
    books: UsageRecorder,
    /// Journal entries that are on the timeline.
    copied: u64,
    /// Receives the number of each phase that ends.
    phases: UnboundedSender<u64>,
}

impl JournalCopier {
    pub(super) fn new(
        studio: &Studio,
        job: &JobId,
        attempt: i64,
        books: UsageRecorder,
        copied: u64,
        phases: UnboundedSender<u64>,
    ) -> Self {
        Self { studio: studio.clone(), job: job.clone(), attempt, run: books.run.clone(), books, copied, phases }
    }

    /// Copies until the run's feed ends. Entries that could not be copied are copied by the next
    /// call.
    pub(super) async fn follow(&mut self, mut watcher: Watcher) {
        while let Some(happened) = watcher.next().await {
            if happened.event.is_delta() {
                let body = EventBody { turn: Some(happened.turn), event: TimelineEventKind::Agent(happened.event) };
                self.studio.inner.timeline.publish_delta(&self.job, body);
            } else if let Err(error) = self.copy().await {
                warn!(job = %self.job, error = %error_chain(&error), "cannot copy the journal to the timeline; trying again");
            }
        }
    }

    /// Copies the entries that the timeline does not have. Copies nothing once another worker has
    /// the job.
    pub(super) async fn copy(&mut self) -> Result<(), StudioError> {
        loop {
            let entries = self.studio.inner.runs.entries(&self.run, self.copied).await;
            let entries = entries.map_err(StudioError::unavailable)?;
            if entries.is_empty() || self.write(entries).await? {
                return Ok(());
            }
            // Another worker has the job; or an earlier write succeeded, and its response was lost.
            let job = self.studio.records().job(&self.job).await?;
            match job.filter(|job| job.attempt == self.attempt && job.run_entries > self.copied) {
                Some(job) => self.copied = job.run_entries,
                None => return Ok(()),
            }
        }
    }

    /// False when the compare-and-swap of `run_entries` failed.
    async fn write(&mut self, entries: Vec<JournalEntry>) -> Result<bool, StudioError> {
        let to = self.copied + u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let mut change = Change { run_entries: Some((self.copied, to)), ..Change::default() };
        let (mut events, mut finished) = (Vec::new(), Vec::new());
        for entry in entries {
            let at = entry.happened.ts;
            self.books.record(&entry.happened).await;
            let event = self.to_event(&entry).await?;
            events.push((at, EventBody { turn: Some(entry.happened.turn), event }));
            if let Event::Usage { total_cost_usd: Some(total), .. } = entry.happened.event {
                change.cost_nanos = Usd::from_dollars(total).map(Usd::nanos).or(change.cost_nanos);
                events.push((at, StudioEvent::Cost { total_usd: total }.into()));
            }
            if let Event::Usage { .. } = entry.happened.event {
                // The model completed a turn, so the interruptions before it no longer count.
                change.progress = true;
            }
            if let Event::PhaseFinished { phase, .. } = entry.happened.event {
                finished.push(phase);
            }
            if let Event::PhaseStarted { phase, of, goal } = &entry.happened.event {
                change.stage_label = Some(format!("Phase {phase} of {of}: {goal}"));
            }
        }
        let copied =
            self.studio.records().change(&self.job, Precondition::Attempt(self.attempt), change, events).await?;
        if copied.is_none() {
            return Ok(false);
        }
        self.copied = to;
        for phase in finished {
            // Without a receiver no screenshots are taken.
            let _ = self.phases.send(phase);
        }
        self.studio.inner.timeline.publish(&self.job).await;
        Ok(true)
    }

    /// The event for the timeline. Saves the images of a tool call.
    async fn to_event(&self, entry: &JournalEntry) -> Result<TimelineEventKind, StudioError> {
        Ok(match entry.happened.event.clone() {
            Event::ToolCallFinished { id, tool, is_error, code, duration_ms, truncated, summary, output, images } => {
                let images = self.save_images(entry, &tool, &images).await?;
                TimelineEventKind::Studio(StudioEvent::ToolCallFinished {
                    id,
                    tool,
                    is_error,
                    code,
                    duration_ms,
                    truncated,
                    summary,
                    output,
                    images,
                })
            }
            event => TimelineEventKind::Agent(event),
        })
    }

    /// Saves the images of a tool call and returns their URLs.
    async fn save_images(
        &self,
        entry: &JournalEntry,
        tool: &str,
        images: &[Image],
    ) -> Result<Vec<String>, StudioError> {
        let Some(RunChange::CallEnded { ended }) = &entry.change else { return Ok(Vec::new()) };
        let screenshots = ended.outcome.content.iter().filter_map(|part| match part {
            Part::Image { media_type, data } => Some((media_type, data)),
            _ => None,
        });
        let mut urls = Vec::new();
        for (number, (image, (media_type, data))) in images.iter().zip(screenshots).enumerate() {
            let Ok(content) = STANDARD.decode(data) else { continue };
            let kept = self.studio.records().save_screenshot(
                &self.job,
                NewScreenshot {
                    // Derived, so that images which a killed worker saved are not saved twice.
                    id: ScreenshotId::from_name(&format!("{}/{}/{number}", self.run, entry.happened.seq)),
                    device: if image.width < DESKTOP { "mobile" } else { "desktop" }.to_owned(),
                    width: image.width,
                    height: image.height,
                    reason: tool.to_owned(),
                    media_type: media_type.clone(),
                    content: content.into(),
                },
            );
            urls.push(kept.await?.url);
        }
        Ok(urls)
    }
}
