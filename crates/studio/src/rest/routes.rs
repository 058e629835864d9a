//! The table of all calls and pages: path, request, responses, handler.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde_json::Value;

use super::operation::{Calls, Content, Operation};
use super::requests::{
    ApprovalAnswer, EventsQuery, FileQuery, FilesQuery, JobsQuery, RebuildRequest, RestoreRequest, TerminalQuery,
};
use super::view::{ApprovalAnswered, GenerationStatus, Jobs, Paused, Screenshots, Snapshots, StartedBuild};
use super::{Shared, events, files, generation, jobs, pages, screenshots, session, terminal};
use crate::{
    Dashboard, FileContent, Job, Listing, Me, NewBuild, PreviewCheck, ResumedPreview, TimelineEvent, UsageReport,
};

const OK: StatusCode = StatusCode::OK;
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
const NO_MONEY: StatusCode = StatusCode::PAYMENT_REQUIRED;
const CONFLICT: StatusCode = StatusCode::CONFLICT;
const NOT_READY: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;

/// The calls under `/api`.
pub(super) fn calls() -> Calls {
    let calls = build_calls(Calls::new());
    let calls = job_calls(calls);
    let calls = preview_calls(calls);
    account_calls(calls)
}

fn build_calls(calls: Calls) -> Calls {
    calls
        .add(
            &Operation::post("/api/generation", "start", "Take a build in, for one credit")
                .takes::<NewBuild>()
                .answers::<StartedBuild>(ACCEPTED, "It waits for a builder.")
                // A project given by its id may not exist; a project that must be new may exist.
                .refuses([NO_MONEY, StatusCode::NOT_FOUND, CONFLICT]),
            generation::start,
        )
        .add(
            &Operation::get("/api/generation/{job_id}/status", "status", "How far a build is")
                .answers::<GenerationStatus>(OK, "How far it is."),
            generation::status,
        )
        .add(
            &Operation::post(
                "/api/generation/{job_id}/resume",
                "resume",
                "Wake a preview; answers when it does, within 150 s",
            )
            .answers::<ResumedPreview>(OK, "The preview answers.")
            .refuses([NOT_READY, CONFLICT, NO_MONEY]),
            generation::resume,
        )
        .add(
            &Operation::post("/api/generation/{job_id}/rebuild", "rebuild", "Build the same again, for one credit")
                .may_take::<RebuildRequest>()
                .answers::<StartedBuild>(ACCEPTED, "The new build waits for a builder.")
                .refuses([NO_MONEY, CONFLICT]),
            generation::rebuild,
        )
}

fn job_calls(calls: Calls) -> Calls {
    calls
        .add(
            &Operation::get("/api/jobs", "jobs", "The builds of a user")
                .query::<JobsQuery>()
                .answers::<Jobs>(OK, "The newest first.")
                .refuses([StatusCode::NOT_FOUND]),
            jobs::list,
        )
        .add(&Operation::get("/api/jobs/{job_id}", "job", "A build").answers::<Job>(OK, "The build."), jobs::get)
        .add(
            &Operation::new(
                Method::DELETE,
                "/api/jobs/{job_id}",
                "delete",
                "Delete a build with its sandbox, files, snapshots and screenshots; its usage stays recorded",
            )
            .gives(StatusCode::NO_CONTENT, "It is gone, and what it leaves is being removed.", Content::Nothing)
            .refuses([CONFLICT]),
            jobs::delete,
        )
        .add(
            &Operation::post("/api/jobs/{job_id}/cancel", "cancel", "End a build that has not ended")
                .answers::<StartedBuild>(OK, "How it stands now."),
            jobs::cancel,
        )
        .add(
            &Operation::get("/api/jobs/{job_id}/events", "events", "The timeline, as server-sent events")
                .query::<EventsQuery>()
                .header("Last-Event-ID", "The last event that was seen; only what comes after it is sent.")
                .streams::<TimelineEvent>(OK, "What is recorded, then what happens, without end."),
            events::watch,
        )
        .add(
            &Operation::get("/api/jobs/{job_id}/snapshots", "snapshots", "Saved states of the files")
                .answers::<Snapshots>(OK, "The newest first."),
            jobs::snapshots,
        )
        .add(
            &Operation::post("/api/jobs/{job_id}/restore", "restore", "Set the files back to a saved state")
                .takes::<RestoreRequest>()
                .answers::<StartedBuild>(ACCEPTED, "It goes on; the timeline tells of its end.")
                .refuses([CONFLICT]),
            jobs::restore,
        )
        .add(
            &Operation::get("/api/jobs/{job_id}/files", "files", "What a directory holds")
                .query::<FilesQuery>()
                .answers::<Listing>(OK, "What it holds.")
                .refuses([StatusCode::UNPROCESSABLE_ENTITY]),
            files::list,
        )
        .add(
            &Operation::get("/api/jobs/{job_id}/file", "file", "What a file holds")
                .query::<FileQuery>()
                .answers::<FileContent>(OK, "What it holds.")
                .refuses([StatusCode::UNPROCESSABLE_ENTITY]),
            files::read,
        )
        .add(
            &Operation::get("/api/jobs/{job_id}/usage", "job_usage", "What a build has used")
                .answers::<UsageReport>(OK, "What it has used."),
            jobs::usage,
        )
        .add(
            &Operation::post(
                "/api/jobs/{job_id}/approvals/{question_id}",
                "answer",
                "Answer a question of the timeline",
            )
            .takes::<ApprovalAnswer>()
            .answers::<ApprovalAnswered>(OK, "The builder will find it.")
            .refuses([CONFLICT]),
            jobs::answer,
        )
}

/// The same call under both of its paths.
fn pause(path: &'static str, id: &'static str) -> Operation {
    Operation::post(path, id, "Let a preview sleep; it may do so already")
        .answers::<Paused>(OK, "Whether it sleeps.")
        .refuses([NOT_READY, CONFLICT])
}

fn preview_calls(calls: Calls) -> Calls {
    calls
        .add(&pause("/api/jobs/{job_id}/snapshot", "pause"), jobs::pause)
        .add(&pause("/api/generation/{job_id}/snapshot", "pause_generation"), jobs::pause)
        .add(
            &Operation::get("/api/jobs/{job_id}/preview", "preview", "How a preview is; never wakes it")
                .answers::<PreviewCheck>(OK, "How it is."),
            jobs::preview,
        )
        .add(
            &Operation::post(
                "/api/jobs/{job_id}/preview/loaded",
                "preview_loaded",
                "Say that a page has loaded the preview: a build that has just become ready is paused then, else within 30 s",
            )
            .gives(StatusCode::NO_CONTENT, "It is known.", Content::Nothing),
            jobs::preview_loaded,
        )
        .add(
            &Operation::get("/api/jobs/{job_id}/screenshots", "screenshots", "Pictures of a build's pages")
                .answers::<Screenshots>(OK, "The newest first."),
            screenshots::list,
        )
        .add(
            &Operation::get("/api/jobs/{job_id}/screenshots/{screenshot_id}", "screenshot", "A picture itself").gives(
                OK,
                "The picture.",
                Content::Other(screenshots::KINDS),
            ),
            screenshots::get,
        )
        .add(
            &Operation::get(
                "/api/jobs/{job_id}/terminal",
                "terminal",
                "A shell in the running sandbox, over a WebSocket",
            )
            .query::<TerminalQuery>()
            .gives(StatusCode::SWITCHING_PROTOCOLS, "Binary messages are bytes.", Content::Nothing)
            .refuses([StatusCode::UPGRADE_REQUIRED, NOT_READY, StatusCode::FORBIDDEN]),
            terminal::open,
        )
}

fn account_calls(calls: Calls) -> Calls {
    calls
        .add(&Operation::get("/api/me", "me", "Who asks").answers::<Me>(OK, "Who asks."), jobs::me)
        .add(
            &Operation::get("/api/dashboard", "dashboard", "Everything at a glance")
                .answers::<Dashboard>(OK, "Everything at a glance."),
            jobs::dashboard,
        )
        .add(
            &Operation::get("/api/projects/{project_id}/usage", "project_usage", "What a project has used")
                .answers::<UsageReport>(OK, "What it has used."),
            jobs::project_usage,
        )
        .add(
            &Operation::get("/api/openapi.json", "openapi", "This document")
                .answers::<serde_json::Map<String, Value>>(OK, "This document.")
                .open(),
            document,
        )
}

async fn document(State(app): State<Shared>) -> Response {
    ([(CONTENT_TYPE, "application/json")], app.document.clone()).into_response()
}

/// The dashboard's pages, sign-in and sign-out.
pub(super) fn pages() -> Router<Shared> {
    Router::new()
        .route("/", get(pages::page))
        .route("/jobs/{job}", get(pages::page))
        .route("/login", get(pages::sign_in).post(session::sign_in))
        .route("/logout", post(session::sign_out))
}
