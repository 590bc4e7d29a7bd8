//! Where the server listens, and by which names it may be called there.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use tokio::net::{TcpListener, lookup_host};
use tokio_rustls::TlsAcceptor;

use super::{HttpError, gate::Hosts, tls};
use crate::{config::ServerConfig, text::quoted};

/// A place that is listened at, and that nobody is served at yet.
pub struct Bound {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) hosts: Hosts,
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound")
            .field("address", &self.address)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Bound {
    /// Listens at an address, `host:port`; without one, where the configuration says.
    ///
    /// # Errors
    ///
    /// [`HttpError`]; nothing is listened at.
    pub async fn listen(config: &ServerConfig, address: Option<&str>) -> Result<Self, HttpError> {
        let (host, port) = match address {
            Some(address) => split(address)?,
            None => (config.host.clone(), config.port),
        };
        let found = resolve(&host, port).await?;
        if !is_of_this_machine(found.ip()) && config.tls.is_none() && !config.plaintext {
            return Err(HttpError::Exposed(found));
        }
        let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
        let cannot = |source| HttpError::Listen {
            address: found,
            source,
        };
        let listener = TcpListener::bind(found).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self {
            listener,
            address,
            tls,
            hosts: hosts(config, &host, address.ip()),
        })
    }

    /// How clients reach it: `http://127.0.0.1:3000`.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }
}

fn split(address: &str) -> Result<(String, u16), HttpError> {
    let wrong = |problem: &str| HttpError::Address {
        address: quoted(address),
        problem: problem.to_owned(),
    };
    let (host, port) = address
        .rsplit_once(':')
        .ok_or_else(|| wrong("there is no port"))?;
    let port = port
        .parse()
        .map_err(|_| wrong("its port is no number from 0 to 65535"))?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if host.is_empty() {
        return Err(wrong("there is no host"));
    }
    Ok((host.to_owned(), port))
}

/// The address of a name; of several, one of the older kind, which everybody can reach.
async fn resolve(host: &str, port: u16) -> Result<SocketAddr, HttpError> {
    let wrong = |problem: String| HttpError::Address {
        address: quoted(host),
        problem,
    };
    let found: Vec<SocketAddr> = lookup_host((host, port))
        .await
        .map_err(|error| wrong(format!("the host cannot be found ({error})")))?
        .collect();
    let best = found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first());
    best.copied()
        .ok_or_else(|| wrong("the host has no address".to_owned()))
}

fn is_of_this_machine(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The names by which requests may call the server. Where it listens everywhere, any address in
/// digits: it is names that an attacker makes point here.
fn hosts(config: &ServerConfig, host: &str, address: IpAddr) -> Hosts {
    let mut names = BTreeSet::from(["localhost".to_owned(), host.to_ascii_lowercase()]);
    names.extend(
        config
            .allowed_hosts
            .iter()
            .map(|name| name.to_ascii_lowercase()),
    );
    // Clients come by the name that their tokens are for.
    let resource = config.oauth.as_ref().map(|oauth| &oauth.resource_url);
    names.extend(
        resource
            .and_then(|url| url.domain())
            .map(str::to_ascii_lowercase),
    );
    let mut addresses = BTreeSet::from([address]);
    if is_of_this_machine(address) {
        addresses.extend([IpAddr::from([127, 0, 0, 1]), Ipv6Addr::LOCALHOST.into()]);
    }
    Hosts {
        names,
        addresses,
        any_address: address.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Sources};

    fn config() -> ServerConfig {
        let sources = Sources {
            data_dir: Some("/nowhere".into()),
            ..Sources::default()
        };
        Config::load(&sources).unwrap().config.server
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        assert_eq!(split("127.0.0.1:0").unwrap(), ("127.0.0.1".to_owned(), 0));
        assert_eq!(split("[::1]:3000").unwrap(), ("::1".to_owned(), 3000));
        for wrong in [
            "",
            "3000",
            ":3000",
            "localhost",
            "localhost:",
            "localhost:http",
            "a:70000",
        ] {
            let message = split(wrong).unwrap_err().to_string();
            assert!(message.contains("127.0.0.1:3000"), "{message}");
        }
    }

    #[tokio::test]
    async fn other_machines_are_served_with_tls_or_on_purpose_only() {
        for address in ["0.0.0.0:0", "[::]:0"] {
            let error = Bound::listen(&config(), Some(address)).await.unwrap_err();
            let message = error.to_string();
            assert!(
                message.contains("server.tls.cert") && message.contains("server.plaintext"),
                "{message}"
            );
        }
        let open = ServerConfig {
            plaintext: true,
            ..config()
        };
        Bound::listen(&open, Some("0.0.0.0:0")).await.unwrap();
        let bound = Bound::listen(&config(), Some("localhost:0")).await.unwrap();
        assert!(
            bound.url().starts_with("http://127.0.0.1:")
                || bound.url().starts_with("http://[::1]:")
        );
    }
}
