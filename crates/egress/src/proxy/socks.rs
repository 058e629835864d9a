//! SOCKS5 (RFC 1928) with user name and password (RFC 1929).

use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Credentials, Destination, ProxyError};

const VERSION: u8 = 5;
const NO_CREDENTIALS: u8 = 0;
const PASSWORD: u8 = 2;
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const V4: u8 = 1;
const NAME: u8 = 3;
const V6: u8 = 4;

pub(super) async fn request_tunnel<S>(
    stream: &mut S,
    credentials: Option<&Credentials>,
    to: &Destination,
    port: u16,
) -> Result<(), ProxyError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let method = if credentials.is_some() { PASSWORD } else { NO_CREDENTIALS };
    // A proxy may accept no authentication although we offer credentials.
    let greeting: &[u8] =
        if credentials.is_some() { &[VERSION, 2, NO_CREDENTIALS, PASSWORD] } else { &[VERSION, 1, NO_CREDENTIALS] };
    send(stream, greeting).await?;
    let [version, chosen] = receive(stream).await?;
    if version != VERSION {
        return Err(ProxyError::NotAProxy("SOCKS5"));
    }
    match (chosen, credentials) {
        (NO_CREDENTIALS, _) => {}
        (PASSWORD, Some(credentials)) => authenticate(stream, credentials).await?,
        (0xff, _) if method == NO_CREDENTIALS => return Err(ProxyError::Refused("it wants credentials".to_owned())),
        _ => return Err(ProxyError::Refused("it wants another way to log in".to_owned())),
    }
    let mut request = vec![VERSION, CONNECT, 0];
    match to {
        Destination::Name(name) => {
            let length =
                u8::try_from(name.len()).map_err(|_| ProxyError::Refused("the name is too long".to_owned()))?;
            request.extend([NAME, length]);
            request.extend(name.as_bytes());
        }
        Destination::Address(IpAddr::V4(address)) => {
            request.push(V4);
            request.extend(address.octets());
        }
        Destination::Address(IpAddr::V6(address)) => {
            request.push(V6);
            request.extend(address.octets());
        }
    }
    request.extend(port.to_be_bytes());
    send(stream, &request).await?;
    let [version, reply, _, kind] = receive(stream).await?;
    if version != VERSION {
        return Err(ProxyError::NotAProxy("SOCKS5"));
    }
    if reply != 0 {
        return Err(ProxyError::Refused(describe_reply(reply).to_owned()));
    }
    // The proxy's bound address, which is not used.
    let length = match kind {
        V4 => 4,
        V6 => 16,
        NAME => usize::from(receive::<1, S>(stream).await?[0]),
        _ => return Err(ProxyError::NotAProxy("SOCKS5")),
    };
    let mut rest = vec![0; length + 2];
    stream.read_exact(&mut rest).await?;
    Ok(())
}

async fn authenticate<S>(stream: &mut S, credentials: &Credentials) -> Result<(), ProxyError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut message = vec![PASSWORD_VERSION];
    for part in [&credentials.username, &credentials.password] {
        message.push(u8::try_from(part.len()).map_err(|_| ProxyError::Credentials)?);
        message.extend(part.as_bytes());
    }
    send(stream, &message).await?;
    match receive(stream).await? {
        [_, 0] => Ok(()),
        _ => Err(ProxyError::Credentials),
    }
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), ProxyError> {
    stream.write_all(bytes).await?;
    Ok(stream.flush().await?)
}

async fn receive<const COUNT: usize, S: AsyncRead + Unpin>(stream: &mut S) -> Result<[u8; COUNT], ProxyError> {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn describe_reply(reply: u8) -> &'static str {
    match reply {
        1 => "it failed",
        2 => "its rules do not allow it",
        3 => "the network cannot be reached",
        4 => "the host cannot be reached",
        5 => "the target refused it",
        6 => "the target did not answer in time",
        7 => "it does not know the command",
        8 => "it does not know the kind of address",
        _ => "for a reason that SOCKS5 does not know",
    }
}
