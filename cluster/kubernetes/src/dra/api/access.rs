//! Where the API server is, and who we are to it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::error::AccessError;

/// Where a pod has the token and the certificate of its service account.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Where the API server is, and who we are to it.
pub struct Access {
    /// `https://HOST:PORT`, without a slash at its end.
    pub(super) server: String,
    pub(super) tls: ClientConfig,
    pub(super) token: Token,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Access");
        debug.field("server", &self.server).finish_non_exhaustive()
    }
}

/// What a request is signed with.
#[derive(Clone)]
pub(super) enum Token {
    /// Nothing, or the certificate of the connection.
    None,
    Text(String),
    /// A file, which is read for each request: kubelet replaces the token of a pod before it expires.
    File(PathBuf),
}

impl Token {
    /// The token as it is now.
    pub(super) fn read(&self) -> Result<Option<String>, AccessError> {
        match self {
            Token::None => Ok(None),
            Token::Text(token) => Ok(Some(token.clone())),
            Token::File(path) => {
                let token = String::from_utf8(read(path)?);
                let token = token.map(|token| token.trim().to_owned());
                Ok(Some(token.unwrap_or_default()))
            }
        }
    }
}

impl Access {
    /// That of a pod, from its environment and the files of its service account. An error if this is no pod.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn of_pod(
        variable: impl Fn(&str) -> Option<String>,
        service_account: &Path,
    ) -> Result<Access, AccessError> {
        let host = variable("KUBERNETES_SERVICE_HOST").ok_or(AccessError::Nowhere)?;
        let port = variable("KUBERNETES_SERVICE_PORT").ok_or(AccessError::Nowhere)?;
        // An IPv6 address.
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host,
        };
        let authorities = read(&service_account.join("ca.crt"))?;
        Ok(Access {
            server: server(&format!("https://{host}:{port}"))?,
            tls: tls(&authorities, None)?,
            token: Token::File(service_account.join("token")),
        })
    }
}

/// The address of a server, as paths are put behind it.
pub(super) fn server(text: &str) -> Result<String, AccessError> {
    let bad = || AccessError::Address(text.to_owned());
    let trimmed = text.trim_end_matches('/');
    let uri: Uri = trimmed.parse().map_err(|_| bad())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_whole = uri.authority().is_some() && uri.query().is_none();
    match is_http && is_whole {
        true => Ok(trimmed.to_owned()),
        false => Err(bad()),
    }
}

/// How a connection is made: whom we trust, and the certificate that we show.
pub(super) fn tls(
    authorities: &[u8],
    own: Option<(&[u8], &[u8])>,
) -> Result<ClientConfig, AccessError> {
    let failed = |what| move |source| AccessError::Certificates { what, source };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        let what = "the certificate authority";
        let certificate = certificate.map_err(|error| failed(what)(error.into()))?;
        let added = roots.add(certificate);
        added.map_err(|error| failed(what)(error.into()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| failed("versions of TLS")(error.into()))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = own else {
        return Ok(builder.with_no_client_auth());
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| failed("the client's certificate")(error.into()))?;
    let key = PrivateKeyDer::from_pem_slice(key);
    let key = key.map_err(|error| failed("the client's key")(error.into()))?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map_err(|error| failed("the client's certificate and key")(error.into()))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, AccessError> {
    fs::read(path).map_err(|source| AccessError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn pod(variables: &[(&str, &str)], directory: &Path) -> Result<Access, AccessError> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        Access::of_pod(variable, directory)
    }

    #[test]
    fn what_is_no_pod_says_what_to_give() {
        let dir = tempfile::tempdir().unwrap();
        for variables in [&[][..], &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]] {
            let error = pod(variables, dir.path()).unwrap_err().to_string();
            assert!(error.contains("give --kubeconfig"), "{error}");
        }
        let variables = [
            ("KUBERNETES_SERVICE_HOST", "fd00::1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
        ];
        let error = pod(&variables, dir.path()).unwrap_err().to_string();
        assert!(error.contains("ca.crt for the API server"), "{error}");
        fs::write(dir.path().join("ca.crt"), "").unwrap();
        let access = pod(&variables, dir.path()).unwrap();
        assert_eq!(access.server, "https://[fd00::1]:443");
    }

    #[test]
    fn the_token_of_a_pod_is_the_one_that_is_there_now() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = Token::File(path.clone());
        assert!(token.read().is_err());
        for text in ["first", "second\n"] {
            fs::write(&path, text).unwrap();
            assert_eq!(token.read().unwrap().unwrap(), text.trim());
        }
    }

    #[test]
    fn a_server_is_an_address_of_http() {
        assert_eq!(server("https://n1:6443/").unwrap(), "https://n1:6443");
        for bad in [
            "",
            "n1:6443",
            "ftp://n1",
            "https://",
            "https://n1/?a=b",
            "https://a b",
        ] {
            assert!(server(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let error = tls(broken, None).unwrap_err().to_string();
        assert!(error.contains("the certificate authority"), "{error}");
        let error = tls(b"", Some((b"", b"no key"))).unwrap_err().to_string();
        assert!(error.contains("the client's key"), "{error}");
    }
}
