//! Where the keys of an issuer come from: an address or a file that the operator named.

use std::{
    error::Error,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use reqwest::{
    Client, Response, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::ACCEPT,
    redirect,
};
use tokio::{fs::File, io::AsyncReadExt, net::lookup_host};

use crate::config::KeySource;

/// Most that is read of keys.
const MAX_BYTES: usize = 256 << 10;

/// How long they may take to arrive, all in all.
const TIME: Duration = Duration::from_secs(10);

/// Keys of an issuer cannot be used, so the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum JwksError {
    /// A file that the operator named is not there, or holds no keys.
    #[error("{}: the keys of the issuer {issuer} cannot be used: {problem}", file.display())]
    File {
        /// The operator's name for the issuer.
        issuer: String,
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No client could be made that would fetch them.
    #[error("keys of issuers cannot be fetched: {0}")]
    Client(reqwest::Error),
}

/// Where keys are read.
#[derive(Debug)]
pub(super) enum Source {
    Url { client: Client, url: Url },
    File(PathBuf),
}

impl Source {
    pub(super) fn open(keys: &KeySource) -> Result<Self, JwksError> {
        let (url, private_network) = match keys {
            KeySource::File(file) => return Ok(Self::File(file.clone())),
            KeySource::Url {
                url,
                private_network,
            } => (url.clone(), *private_network),
        };
        let client = Client::builder()
            .timeout(TIME)
            // Whoever answers for the address has the keys; nobody that they name does.
            .redirect(redirect::Policy::none())
            // It would be the proxy that looks names up, and any address would do.
            .no_proxy()
            .dns_resolver(Arc::new(Lookup { private_network }))
            .pool_max_idle_per_host(0)
            .build()
            .map_err(JwksError::Client)?;
        Ok(Self::Url { client, url })
    }

    /// Reads what is there now, never more than 256 KiB and never for more than ten seconds.
    ///
    /// # Errors
    ///
    /// What went wrong, for the log.
    pub(super) async fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::File(path) => read_file(path).await.map_err(|error| error.to_string()),
            Self::Url { client, url } => {
                let request = client.get(url.clone()).header(ACCEPT, "application/json");
                read_answer(request.send().await.map_err(told)?).await
            }
        }
    }
}

async fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = MAX_BYTES as u64 + 1;
    let file = File::open(path).await?;
    file.take(most).read_to_end(&mut bytes).await?;
    if bytes.len() > MAX_BYTES {
        return Err(io::Error::other(too_large()));
    }
    Ok(bytes)
}

async fn read_answer(mut answer: Response) -> Result<Vec<u8>, String> {
    if answer.status() != StatusCode::OK {
        return Err(format!(
            "the answer is {}, and only 200 will do",
            answer.status().as_u16()
        ));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(told)? {
        if bytes.len() + chunk.len() > MAX_BYTES {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn too_large() -> String {
    format!("there are more than {MAX_BYTES} bytes of them")
}

/// The innermost error: those around it repeat the address.
fn told(error: reqwest::Error) -> String {
    let error = error.without_url();
    if error.is_timeout() {
        return format!("they did not arrive within {} s", TIME.as_secs());
    }
    let mut innermost: &dyn Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Looks names up, and passes over addresses that a name of the public network must not have: one
/// that was made to point at a service inside would be asked by a server that is inside.
#[derive(Debug)]
struct Lookup {
    private_network: bool,
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let any = self.private_network || name.as_str() == "localhost";
        Box::pin(async move {
            let found = lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(permitted(found, any)?.into_iter()) as Addrs)
        })
    }
}

fn permitted(mut found: Vec<SocketAddr>, any: bool) -> Result<Vec<SocketAddr>, &'static str> {
    found.retain(|address| any || is_public(address.ip()));
    if found.is_empty() {
        return Err(
            "the name in jwks_url has no public address; if it is meant to be in a private network, set private_network: true",
        );
    }
    Ok(found)
}

fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || address.is_multicast();
    !special
        && match address.octets() {
            // This network, and what is reserved.
            [0 | 240..=255, ..] => false,
            // Shared by a provider's customers.
            [100, 64..=127, ..] => false,
            // Assigned to protocols, and for benchmarks.
            [192, 0, 0, _] | [198, 18 | 19, ..] => false,
            _ => true,
        }
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // What stands for an address of the older kind, for machines that have none.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
        }
        // Teredo, documentation and 6to4 lie within what is handed out.
        [0x2001, 0 | 0xdb8, ..] | [0x2002, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_public_network_are_public() {
        for public in ["8.8.8.8", "100.63.0.1", "2606:4700::1", "64:ff9b::808:808"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for other in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.0.1",
            "203.0.113.1",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "64:ff9b::a9fe:a9fe",
        ] {
            assert!(!is_public(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn a_public_name_is_asked_at_its_public_addresses_only() {
        let found = || {
            ["10.0.0.1:0", "8.8.8.8:0", "[::1]:0"]
                .map(|text| text.parse().unwrap())
                .to_vec()
        };
        assert_eq!(
            permitted(found(), false).unwrap(),
            ["8.8.8.8:0".parse().unwrap()]
        );
        assert_eq!(permitted(found(), true).unwrap().len(), 3);
        let inside = vec!["169.254.169.254:0".parse().unwrap()];
        let refused = permitted(inside, false).unwrap_err();
        assert!(refused.contains("private_network: true"), "{refused}");
    }
}
