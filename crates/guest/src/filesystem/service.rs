//! The `filesystem.Filesystem` service. The guest accesses files as root; the caller's user
//! determines how relative paths resolve and who owns new files.

use std::path::PathBuf;
use std::sync::Arc;

use connectrpc::{ConnectError, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};
use futures::stream;
use protocol::rpc::filesystem::watch_dir_response::{Event, KeepAlive, StartEvent};
use protocol::rpc::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, Filesystem, GetWatcherEventsRequest, GetWatcherEventsResponse,
    ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse, RemoveRequest,
    RemoveResponse, RemoveWatcherRequest, RemoveWatcherResponse, StatRequest, StatResponse, WatchDirRequest,
    WatchDirResponse,
};

use super::tree;
use super::watchers::{self, WatchOptions};
use crate::http::caller;
use crate::paths;
use crate::state::Guest;
use crate::streams::{StreamEvent, StreamTiming};
use crate::thread_pool;
use crate::users::User;

pub(crate) struct FilesystemService(pub(crate) Arc<Guest>);

impl Filesystem for FilesystemService {
    async fn stat(&self, ctx: RequestContext, request: ServiceRequest<'_, StatRequest>) -> ServiceResult<StatResponse> {
        let path = self.resolve(&self.user(&ctx)?, request.path)?;
        let guest = Arc::clone(&self.0);
        let entry = blocking(move || tree::stat(&path, &guest.users.accounts())).await?;
        Response::ok(StatResponse { entry: entry.into(), ..StatResponse::default() })
    }

    async fn make_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, MakeDirRequest>,
    ) -> ServiceResult<MakeDirResponse> {
        let user = self.user(&ctx)?;
        let path = self.resolve(&user, request.path)?;
        let guest = Arc::clone(&self.0);
        let entry = blocking(move || tree::make(&path, &user, &guest.users.accounts())).await?;
        Response::ok(MakeDirResponse { entry: entry.into(), ..MakeDirResponse::default() })
    }

    async fn r#move(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, MoveRequest>,
    ) -> ServiceResult<MoveResponse> {
        let user = self.user(&ctx)?;
        let source = self.resolve(&user, request.source)?;
        let destination = self.resolve(&user, request.destination)?;
        let guest = Arc::clone(&self.0);
        let moved = blocking(move || tree::relocate(&source, &destination, &user, &guest.users.accounts())).await?;
        Response::ok(MoveResponse { entry: moved.into(), ..MoveResponse::default() })
    }

    async fn list_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, ListDirRequest>,
    ) -> ServiceResult<ListDirResponse> {
        let path = self.resolve(&self.user(&ctx)?, request.path)?;
        let (depth, guest) = (request.depth, Arc::clone(&self.0));
        let entries = blocking(move || tree::list(&path, depth, &guest.users.accounts())).await?;
        Response::ok(ListDirResponse { entries, ..ListDirResponse::default() })
    }

    async fn remove(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, RemoveRequest>,
    ) -> ServiceResult<RemoveResponse> {
        let path = self.resolve(&self.user(&ctx)?, request.path)?;
        blocking(move || tree::remove(&path)).await?;
        Response::ok(RemoveResponse::default())
    }

    async fn watch_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, WatchDirRequest>,
    ) -> ServiceResult<ServiceStream<WatchDirResponse>> {
        let wish = WatchOptions {
            path: self.resolve(&self.user(&ctx)?, request.path)?,
            recursive: request.recursive,
            include_entry: request.include_entry,
            allow_network_mounts: request.allow_network_mounts,
        };
        let timing = StreamTiming::from_context(&ctx);
        let include_entry = wish.include_entry;
        let watch = blocking(move || wish.begin()).await?;
        let events = watchers::stream(Arc::clone(&self.0), watch, include_entry);
        let response = |event: Event| WatchDirResponse { event: Some(event), ..WatchDirResponse::default() };
        let states = stream::unfold((Some(events), true), move |(events, first)| async move {
            let mut events = events?;
            if first {
                return Some((Ok(response(StartEvent::default().into())), (Some(events), false)));
            }
            Some(match timing.next(&mut events).await {
                StreamEvent::Item(event) => (Ok(response(event.into())), (Some(events), false)),
                StreamEvent::Silence => (Ok(response(KeepAlive::default().into())), (Some(events), false)),
                StreamEvent::Expired => {
                    (Err(ConnectError::deadline_exceeded("the watch reached its timeout")), (None, false))
                }
                StreamEvent::Over => (Err(ConnectError::internal("the watch was lost")), (None, false)),
            })
        });
        Response::stream_ok(states)
    }

    async fn create_watcher(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, CreateWatcherRequest>,
    ) -> ServiceResult<CreateWatcherResponse> {
        let wish = WatchOptions {
            path: self.resolve(&self.user(&ctx)?, request.path)?,
            recursive: request.recursive,
            include_entry: request.include_entry,
            allow_network_mounts: request.allow_network_mounts,
        };
        let include_entry = wish.include_entry;
        let watch = blocking(move || wish.begin()).await?;
        let watcher_id = self.0.watchers.add(Arc::clone(&self.0), watch, include_entry);
        Response::ok(CreateWatcherResponse { watcher_id, ..CreateWatcherResponse::default() })
    }

    async fn get_watcher_events(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, GetWatcherEventsRequest>,
    ) -> ServiceResult<GetWatcherEventsResponse> {
        caller::check(&self.0, &ctx)?;
        let events = self.0.watchers.drain(request.watcher_id).ok_or_else(|| no_watcher(request.watcher_id))?;
        Response::ok(GetWatcherEventsResponse { events, ..GetWatcherEventsResponse::default() })
    }

    async fn remove_watcher(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, RemoveWatcherRequest>,
    ) -> ServiceResult<RemoveWatcherResponse> {
        caller::check(&self.0, &ctx)?;
        if self.0.watchers.remove(request.watcher_id) {
            Response::ok(RemoveWatcherResponse::default())
        } else {
            Err(no_watcher(request.watcher_id))
        }
    }
}

impl FilesystemService {
    fn user(&self, context: &RequestContext) -> Result<User, ConnectError> {
        caller::user(&self.0, context)
    }

    fn resolve(&self, user: &User, path: &str) -> Result<PathBuf, ConnectError> {
        paths::resolve(path, user, self.0.default_workdir().as_deref())
            .map_err(|bad| ConnectError::invalid_argument(bad.to_string()))
    }
}

fn no_watcher(id: &str) -> ConnectError {
    ConnectError::not_found(format!("watcher with id {id} not found"))
}

/// Runs blocking file work on the thread pool.
async fn blocking<T: Send + 'static>(
    task: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    thread_pool::spawn(task).await.map_err(|_| ConnectError::internal("the file system call was interrupted"))?
}
