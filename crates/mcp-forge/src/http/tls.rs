//! TLS by rustls: a certificate and its key, from PEM files.

use std::sync::Arc;

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs::default_provider,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{Error, PemObject},
        },
    },
};

use super::HttpError;
use crate::config::TlsFiles;

/// What greets clients.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, HttpError> {
    let bad_cert = |problem: String| HttpError::Tls {
        file: files.cert.clone(),
        problem,
    };
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad_cert(told("certificate", &error)))?;
    if chain.is_empty() {
        return Err(bad_cert(told("certificate", &Error::NoItemsFound)));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| HttpError::Tls {
        file: files.key.clone(),
        problem: told("private key", &error),
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| bad_cert(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| {
            bad_cert(format!(
                "the certificate and its key cannot be used together: {error}"
            ))
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn told(what: &str, error: &Error) -> String {
    match error {
        Error::Io(error) => format!("the {what} cannot be read: {error}"),
        Error::NoItemsFound => {
            format!("there is no {what} in the file; it must be PEM, beginning with -----BEGIN")
        }
        _ => format!("the {what} is not valid PEM: {error}"),
    }
}
