//! What all handles to a workspace share in this process: its record, its fence, its lease, and whose turn it is.
//!
//! Invariant: whatever changes the record or the sandbox has the [`Turn`]. Those who work in the sandbox do not need it;
//! they pass the fence, which whoever has the turn may close.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use sdk::{Client, Sandbox};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tracing::warn;

use super::create::read_details;
use super::details::{Details, Place, Run};
use super::error::{OpenError, Unavailable, WorkspaceError};
use super::fence::Fence;
use super::lease::Holding;
use super::news::News;
use super::notice::some;
use super::remaining::LastAnswer;
use crate::chain::chain;
use crate::clock::later;
use crate::devserver::DevServer;
use crate::events::{EventKind, WorkspaceEvent};
use crate::house::House;
use crate::mask::Mask;
use crate::name::{ProviderName, WorkspaceName};
use crate::provider::Placed;
use crate::records::{ChangeError, Interval, Payer, WorkspaceRecord, WorkspaceState};
use crate::settings::Settings;
use crate::snapshot::{EnvValues, ExposedFile, Occasion, ProjectId, SaveError, Saved, SnapshotOptions, Stamp};

/// Under which the dev server stands in a record's services.
const DEV_SERVER: &str = "dev_server";

/// The metadata by which a workspace's sandboxes are found.
pub const METADATA: &str = "sandbar.workspace";

/// For a store to answer a small question.
const STORE_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

const REGAINED: &str = "Another process worked in this workspace while this one was held up: files may have changed.";

pub(crate) struct Core {
    pub(super) house: Arc<House>,
    pub(super) name: WorkspaceName,
    pub(super) project: ProjectId,
    pub(super) holding: Holding,
    pub(super) fence: Fence,
    turn: tokio::sync::Mutex<()>,
    seat: Mutex<Seat>,
    mask: Mask,
    env_values: EnvValues,
    /// Somebody worked in the sandbox since the last look for a commit.
    pub(super) touched: AtomicBool,
    /// And since the files were saved.
    pub(super) unsaved: AtomicBool,
    pub(super) closed: AtomicBool,
    /// A first snapshot was tried in this process.
    first_tried: AtomicBool,
    /// Tells the keeper that something is different.
    pub(super) changed: Notify,
}

/// What is known in this process.
pub(super) struct Seat {
    pub(super) record: WorkspaceRecord,
    pub(super) details: Details,
    /// Apart from the details, since those who work take them without having the turn.
    news: News,
    stored_news: News,
    /// Known to run, as far as anybody has looked.
    pub(super) attached: Option<Attached>,
    pub(super) last_answer: Option<LastAnswer>,
    /// The last save of this process, by the wall clock, as in the details, and by
    /// [`Core::stable_now`].
    pub(super) saved: Option<(Timestamp, Timestamp)>,
}

impl Seat {
    fn new(mut record: WorkspaceRecord, mut details: Details) -> Self {
        let news = std::mem::take(&mut details.news);
        record.details = Value::Null;
        Self { record, details, stored_news: news.clone(), news, attached: None, last_answer: None, saved: None }
    }
}

/// A sandbox that runs.
#[derive(Clone)]
pub(super) struct Attached {
    pub(super) sandbox: Sandbox,
    /// Its run, by [`Core::stable_now`].
    pub(super) started_at: Timestamp,
    pub(super) ends_at: Timestamp,
    /// When that was heard, by the same.
    pub(super) seen_at: Timestamp,
}

/// Why files are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SavedFor {
    /// The sandbox is about to be replaced.
    Handover,
    /// It is about to stop.
    Stop,
    /// Work was touched, and the last snapshot is old.
    Interval,
    Request,
    Phase,
}

impl SavedFor {
    fn occasion(self) -> Occasion {
        match self {
            Self::Handover | Self::Stop => Occasion::Stop,
            Self::Interval => Occasion::Interval,
            Self::Request => Occasion::Requested,
            Self::Phase => Occasion::Phase,
        }
    }
}

/// The right to change the record and the sandbox, in this process.
pub(super) struct Turn<'a> {
    _guard: tokio::sync::MutexGuard<'a, ()>,
}

impl Core {
    pub(crate) fn new(house: Arc<House>, holding: Holding, record: WorkspaceRecord, details: Details) -> Self {
        let mask = Mask::of_variables(record.env.iter().map(|(name, value)| (name.as_str(), value.expose())));
        let env_values = EnvValues::of(record.env.iter().map(|(name, value)| (name.as_str(), value.expose())));
        let unsaved = details.unsaved;
        Self {
            house,
            name: record.name.clone(),
            project: record.project.clone(),
            holding,
            fence: Fence::new(),
            turn: tokio::sync::Mutex::new(()),
            seat: Mutex::new(Seat::new(record, details)),
            mask,
            env_values,
            touched: AtomicBool::new(false),
            unsaved: AtomicBool::new(unsaved),
            closed: AtomicBool::new(false),
            first_tried: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    pub(crate) fn holding(&self) -> &Holding {
        &self.holding
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.house.settings
    }

    pub(super) fn now(&self) -> Timestamp {
        self.house.settings.clock.now()
    }

    /// The time by which this process decides what is due. It does not jump when the clock is set.
    pub(super) fn stable_now(&self) -> Timestamp {
        self.house.stable_now()
    }

    pub(super) fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn. A lease that was lost is taken again here, where nothing that was begun
    /// under it is under way; whether it could be, [`Core::check`] tells.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let turn = Turn { _guard: self.turn.lock().await };
        if self.is_open()
            && self.holding.is_lost()
            && let Err(error) = self.regain(&turn).await
        {
            warn!(workspace = %self.name, error = %chain(&error), "the lease was not taken again");
        }
        turn
    }

    /// Takes the lease again, and reads what the process that had it has left.
    async fn regain(&self, turn: &Turn<'_>) -> Result<(), OpenError> {
        self.holding.take_again(self.settings().lease_wait).await.map_err(OpenError::of_lease)?;
        let read = async {
            let record = self.house.records.workspace(&self.name).await?;
            let record = record.ok_or_else(|| OpenError::NotFound(self.name.clone()))?;
            let details = read_details(&record)?;
            Ok::<_, OpenError>((record, details))
        };
        let (record, details) = match read.await {
            Ok(read) => read,
            Err(error) => {
                self.holding.release().await;
                return Err(error);
            }
        };
        {
            let mut seat = self.seat();
            *seat = Seat::new(record, details);
        }
        self.notice(REGAINED);
        if let Err(error) = self.update(turn, |_, details| details.epoch += 1).await {
            warn!(workspace = %self.name, error = %chain(&error), "that the lease was taken again was not noted");
        }
        Ok(())
    }

    /// Takes the lease again where it was lost.
    ///
    /// # Errors
    /// Another process has it.
    pub(crate) async fn ensure_held(&self) -> Result<(), OpenError> {
        if self.holding.is_lost() {
            let turn = Turn { _guard: self.turn.lock().await };
            if self.is_open() && self.holding.is_lost() {
                self.regain(&turn).await?;
            }
        }
        Ok(())
    }

    /// Whether this process may act on the workspace.
    pub(super) async fn check(&self) -> Result<(), Unavailable> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Unavailable::Closed(self.name.clone()));
        }
        if !self.holding.holds().await {
            let workspace = self.name.clone();
            return Err(match self.holding.refusal() {
                Some(reason) => Unavailable::LeaseNotRenewed { workspace, reason },
                None => Unavailable::LeaseLost(workspace),
            });
        }
        Ok(())
    }

    /// It can be handed out again.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// Leaves no record of a workspace of which nothing was made: there is nothing to go on from.
    pub(crate) async fn forget_unless_begun(&self) {
        let begun = {
            let Seat { record, details, .. } = &*self.seat();
            record.sandbox.is_some() || !details.retired.is_empty() || record.state != WorkspaceState::SettingUp
        };
        if !begun && let Err(error) = self.house.records.remove_workspace(&self.holding.lease()).await {
            warn!(workspace = %self.name, error = %chain(&error), "a record of a workspace that was not made is left");
        }
    }

    /// Lets others have the workspace, when nothing was started yet.
    pub(crate) async fn give_back(&self) {
        self.holding.release().await;
    }

    pub(super) fn mask(&self) -> &Mask {
        &self.mask
    }

    pub(super) fn hidden(&self, text: &str) -> String {
        self.mask.mask(text).into_owned()
    }

    /// Changes the record, in the store first.
    pub(super) async fn update(
        &self,
        _turn: &Turn<'_>,
        change: impl FnOnce(&mut WorkspaceRecord, &mut Details),
    ) -> Result<(), ChangeError> {
        let (mut record, mut details) = {
            let seat = self.seat();
            (seat.record.clone(), Details { news: seat.news.clone(), ..seat.details.clone() })
        };
        change(&mut record, &mut details);
        record.details = to_value(&details);
        let written = self.house.records.update_workspace(&record, &self.holding.lease()).await;
        if let Err(ChangeError::LeaseLost(_)) = &written {
            self.holding.lose();
        }
        written?;
        let mut seat = self.seat();
        seat.stored_news = std::mem::take(&mut details.news);
        record.details = Value::Null;
        seat.record = record;
        seat.details = details;
        drop(seat);
        self.changed.notify_one();
        Ok(())
    }

    /// Something that whoever works here next has to know. It is stored with the next change of the record.
    pub(super) fn notice(&self, line: &str) {
        let line = self.hidden(line);
        warn!(workspace = %self.name, "{line}");
        self.seat().news.add(line);
    }

    /// What this reader has not heard.
    pub(super) fn tell_reader(&self, reader: &str) -> Vec<String> {
        self.seat().news.tell(reader)
    }

    /// Stores who was told what, if the record does not say so yet.
    pub(super) async fn store_notices(&self, turn: &Turn<'_>) -> Result<(), ChangeError> {
        let differ = {
            let seat = self.seat();
            seat.news != seat.stored_news
        };
        if differ { self.update(turn, |_, _| {}).await } else { Ok(()) }
    }

    /// Stores that the sandbox has work that is in no snapshot, for the process that comes next.
    pub(super) async fn store_unsaved(&self, turn: &Turn<'_>) -> Result<(), ChangeError> {
        let unsaved = self.unsaved.load(Ordering::Acquire);
        let stored = self.seat().details.unsaved;
        if stored == unsaved { Ok(()) } else { self.update(turn, |_, details| details.unsaved = unsaved).await }
    }

    pub(super) async fn tell(&self, kind: EventKind) {
        let event =
            WorkspaceEvent { workspace: self.name.clone(), project: self.project.clone(), at: self.now(), kind };
        self.house.observer.event(&event).await;
    }

    /// The sandbox that the record names.
    pub(super) fn place(&self) -> Option<Place> {
        let seat = self.seat();
        let sandbox = seat.record.sandbox.clone()?;
        Some(Place { provider: seat.record.provider.clone(), sandbox })
    }

    pub(super) fn attached(&self) -> Option<Attached> {
        self.seat().attached.clone()
    }

    /// Nobody knows any more whether the sandbox runs.
    pub(super) fn detach(&self) {
        self.seat().attached = None;
    }

    pub(super) fn attach(&self, sandbox: Sandbox, remaining: Duration) {
        let now = self.stable_now();
        let mut seat = self.seat();
        let known = seat.attached.as_ref().filter(|known| known.sandbox.id() == sandbox.id());
        // Written by the wall clock, which may have been set since.
        let recorded = || seat.details.run.map_or(now, |run| run.started_at.min(now));
        let started_at = known.map_or_else(recorded, |known| known.started_at);
        seat.attached = Some(Attached { sandbox, started_at, ends_at: later(now, remaining), seen_at: now });
        drop(seat);
        self.changed.notify_one();
    }

    /// Somebody may work right away.
    pub(super) fn is_ready(&self) -> Option<(Attached, u64)> {
        let seat = self.seat();
        let ready = seat.record.state == WorkspaceState::Ready && !seat.record.paused;
        let attached = seat.attached.clone().filter(|attached| ready && attached.ends_at > self.stable_now())?;
        Some((attached, seat.details.epoch))
    }

    pub(super) async fn client(&self, provider: &ProviderName) -> Result<Client, WorkspaceError> {
        let found = self.house.orchestrator.provider(provider)?;
        found.client().await.map_err(|source| WorkspaceError::Provider { provider: provider.clone(), source })
    }

    pub(super) fn payer(&self) -> Payer {
        Payer { project: self.project.to_string(), job: self.seat().details.job.clone() }
    }

    pub(super) fn dev_server(&self) -> Option<DevServer> {
        dev_server(&self.seat().record)
    }

    /// Nothing of a workspace that runs was ever saved, nor tried to be in this process.
    pub(super) fn wants_first_snapshot(&self) -> bool {
        let fresh = !self.settings().first_snapshot_for.is_zero() && !self.seat().details.saved;
        fresh && !self.first_tried.load(Ordering::Acquire) && self.is_ready().is_some()
    }

    /// Takes it, unless somebody was faster. That it failed is told by an event; the next phase brings another.
    pub(super) async fn first_snapshot(&self, turn: &Turn<'_>) {
        if let Some((attached, _)) = self.is_ready().filter(|_| self.wants_first_snapshot())
            && self.store_answers().await
        {
            let _told = self.save(turn, &attached.sandbox, SavedFor::Request).await;
            self.first_tried.store(true, Ordering::Release);
        }
    }

    /// Whether the store of snapshots answers now. Asked before a snapshot that no caller waits
    /// for: a store that hangs holds up no command that does not need it. What is not saved then is
    /// saved later, by this process or the next.
    pub(super) async fn store_answers(&self) -> bool {
        let listed = self.house.snapshots.newest(&self.project);
        let answers = matches!(tokio::time::timeout(STORE_ANSWER_TIMEOUT, listed).await, Ok(Ok(_)));
        if !answers {
            warn!(workspace = %self.name, "the store of snapshots does not answer; the files are saved later");
        }
        answers
    }

    /// Saves the files of a sandbox, and notes what is kept now. The fence may be open.
    pub(super) async fn save(
        &self,
        turn: &Turn<'_>,
        sandbox: &Sandbox,
        saved_for: SavedFor,
    ) -> Result<Saved, SaveError> {
        self.save_sparing(turn, sandbox, saved_for, None).await
    }

    /// The same, and this snapshot is not removed for it.
    pub(super) async fn save_sparing(
        &self,
        turn: &Turn<'_>,
        sandbox: &Sandbox,
        saved_for: SavedFor,
        spare: Option<Stamp>,
    ) -> Result<Saved, SaveError> {
        let values = match self.seat().details.allow_env_values {
            true => EnvValues::default(),
            false => self.env_values.clone(),
        };
        let occasion = saved_for.occasion();
        let options = SnapshotOptions { spare, occasion, values, ..self.settings().snapshot.clone() };
        // What is written from here on may not be in it.
        let saving = SaveGuard::begin(&self.unsaved);
        match self.house.snapshots.save(sandbox, &self.project, &options).await {
            Ok(saved) => {
                saving.finish();
                self.note_saved(turn, sandbox, saved_for, &saved).await;
                let Saved { stamp, unchanged, ref key, files, bytes, .. } = saved;
                let kind = match unchanged {
                    true => EventKind::SnapshotUnchanged { stamp },
                    false => EventKind::SnapshotSaved { stamp, key: key.clone(), files, bytes },
                };
                self.tell(kind).await;
                Ok(saved)
            }
            Err(error) => {
                drop(saving);
                if let SaveError::Exposed { files, .. } = &error {
                    self.tell_exposed(turn, files).await;
                }
                let reason = self.hidden(&chain(&error));
                warn!(workspace = %self.name, reason, "no snapshot was saved; the work goes on");
                self.tell(EventKind::SnapshotFailed { reason }).await;
                Err(error)
            }
        }
    }

    /// Notes what is kept now, marks the sandbox with it, and tells those who work here which folders are not in it while they
    /// still have them.
    async fn note_saved(&self, turn: &Turn<'_>, sandbox: &Sandbox, saved_for: SavedFor, saved: &Saved) {
        let stays = saved_for != SavedFor::Handover;
        let marked = self.seat().details.mark.clone().filter(|mark| mark.stamp == saved.stamp);
        let mark = match marked {
            None if stays => self.write_mark(sandbox, saved.stamp).await,
            marked => marked,
        };
        let known = self.seat().details.excluded_told.clone();
        let excluded: BTreeSet<String> = saved.left_out.iter().map(|path| path.text().into_owned()).collect();
        let new: Vec<&str> = excluded.difference(&known).map(String::as_str).collect();
        let told = stays && !new.is_empty();
        if told {
            self.notice(&format!(
                "Snapshots leave out generated folders, and a change of sandbox does not keep them: {}.",
                some(new.into_iter())
            ));
        }
        let now = self.now();
        self.seat().saved = Some((now, self.stable_now()));
        let noted = self.update(turn, |_, details| {
            details.saved = true;
            details.saved_at = Some(now);
            details.unsaved = false;
            details.exposed_told.clear();
            if stays {
                details.mark = mark;
            }
            if told {
                details.excluded_told = excluded;
            }
        });
        if let Err(error) = noted.await {
            warn!(workspace = %self.name, error = %chain(&error), "a snapshot was not noted");
        }
        if !saved.unchanged {
            self.house.note_stored(&self.project, now).await;
        }
    }

    /// Tells those who work here, once, why nothing is saved any more.
    async fn tell_exposed(&self, turn: &Turn<'_>, files: &[ExposedFile]) {
        let files: BTreeSet<String> = files.iter().map(ToString::to_string).collect();
        if self.seat().details.exposed_told == files {
            return;
        }
        self.notice(&format!(
            "This workspace is not saved any more: files contain values of its --env variables, which snapshots must not: {}. \
             Read the values from the environment instead of writing them into files.",
            some(files.iter().map(String::as_str).collect::<Vec<_>>().into_iter())
        ));
        if let Err(error) = self.update(turn, |_, details| details.exposed_told = files).await {
            warn!(workspace = %self.name, error = %chain(&error), "what was told may be told again");
        }
    }

    /// Ends a sandbox that nobody works in any more. False when it could not be, so that it is to be tried again.
    pub(super) async fn end(&self, place: &Place) -> bool {
        let killed = match self.client(&place.provider).await {
            Ok(client) => client.within(crate::provider::ANSWER_TIME).kill(&place.sandbox).await.map_err(Into::into),
            Err(error) => Err(error),
        };
        match killed {
            Ok(_) => {
                self.close_interval(place).await;
                true
            }
            Err(error) => {
                warn!(workspace = %self.name, sandbox = %place, error = %chain(&error), "a sandbox could not be ended");
                false
            }
        }
    }

    pub(super) async fn close_interval(&self, place: &Place) {
        let closed = self.house.records.close_interval(&place.provider, &place.sandbox, self.now()).await;
        if let Err(error) = closed {
            warn!(sandbox = %place, error = %chain(&error), "the end of a run was not noted");
        }
    }

    /// Notes that a sandbox runs again.
    pub(super) async fn open_interval(&self, place: &Place, run: &Run) {
        let Run { started_at, ends_at, size } = *run;
        let interval = Interval {
            provider: place.provider.clone(),
            sandbox: place.sandbox.clone(),
            payer: self.payer(),
            size,
            started_at,
            until: ends_at,
            ended_at: None,
        };
        if let Err(error) = self.house.records.open_interval(&interval).await {
            warn!(sandbox = %place, error = %chain(&error), "the start of a run was not noted");
        }
    }
}

/// A save under way. The work counts as unsaved again if the save fails or its future is dropped.
struct SaveGuard<'a> {
    unsaved: &'a AtomicBool,
    finished: bool,
}

impl<'a> SaveGuard<'a> {
    fn begin(unsaved: &'a AtomicBool) -> Self {
        unsaved.store(false, Ordering::Release);
        Self { unsaved, finished: false }
    }

    /// The work is in a snapshot.
    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for SaveGuard<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.unsaved.store(true, Ordering::Release);
        }
    }
}

impl Run {
    pub(super) fn of(placed: &Placed) -> Self {
        Self { started_at: placed.started_at, ends_at: placed.ends_at, size: placed.size }
    }
}

pub(super) fn to_value(details: &Details) -> Value {
    serde_json::to_value(details).expect("names, numbers and texts can be written as JSON")
}

/// What a record declares.
pub(crate) fn dev_server(record: &WorkspaceRecord) -> Option<DevServer> {
    record.services.get(DEV_SERVER).and_then(|value| serde_json::from_value(value.clone()).ok())
}

pub(super) fn services(dev_server: Option<&DevServer>) -> Value {
    dev_server.map_or_else(|| json!({}), |server| json!({ DEV_SERVER: server }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_counts_as_unsaved_after_a_save_that_was_dropped() {
        let unsaved = AtomicBool::new(true);
        let save = async {
            let _saving = SaveGuard::begin(&unsaved);
            std::future::pending::<()>().await;
        };
        assert!(tokio::time::timeout(Duration::ZERO, save).await.is_err());
        assert!(unsaved.load(Ordering::Acquire));
        SaveGuard::begin(&unsaved).finish();
        assert!(!unsaved.load(Ordering::Acquire));
    }
}
