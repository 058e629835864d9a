//! Tunnels after an upgrade: bytes both ways until either side closes, or the sandbox can no longer
//! be reached.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tracing::debug;

const BUFFER_BYTES: usize = 64 << 10;

pub(super) async fn join(client: OnUpgrade, sandbox: OnUpgrade, disconnect: CancellationToken, end: CancellationToken) {
    let joined = async {
        let (client, sandbox) = tokio::try_join!(client, sandbox).map_err(std::io::Error::other)?;
        let (mut client, mut sandbox) = (TokioIo::new(client), TokioIo::new(sandbox));
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut sandbox, BUFFER_BYTES, BUFFER_BYTES).await
    };
    // Dropping both ends closes both connections.
    tokio::select! {
        result = joined => {
            if let Err(error) = result {
                debug!(%error, "a tunnel ended early");
            }
        }
        () = disconnect.cancelled() => {}
        () = end.cancelled() => {}
    }
}
