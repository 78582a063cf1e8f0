//! The address of the API server, and our credentials.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use http::Uri;
use onload_sys::text::Quoted;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::sign::SingleCertAndKey;

use super::certificate::load_certified_key;
use super::server_verifier::{Authorities, ServerVerifier};

/// The directory with the token and certificate of a pod's service account.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Says how to reach the API server.
#[derive(Clone, Debug)]
pub enum AccessSource {
    Kubeconfig(PathBuf),
    /// The service account of this program's pod.
    Pod {
        server: String,
        service_account: PathBuf,
    },
}

/// The address of the API server, and our credentials, as read from an [`AccessSource`].
pub(crate) struct ApiAccess {
    /// `https://HOST:PORT`, without a trailing slash.
    pub(super) server: String,
    pub(super) token: Option<String>,
    /// A file that takes precedence over `token`.
    pub(super) token_file: Option<PathBuf>,
    pub(crate) tls: TlsFiles,
}

/// The contents of the TLS files, in PEM.
#[derive(PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The file with the authorities, for messages.
    pub(super) origin: String,
    /// The trusted authorities.
    pub(super) authorities: Vec<u8>,
    /// Our certificate and its key.
    pub(super) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl AccessSource {
    /// Uses the kubeconfig if one is named, or else the service account of this program's pod.
    pub(crate) fn find(kubeconfig: Option<&Path>) -> Result<AccessSource> {
        match kubeconfig {
            Some(path) => Ok(AccessSource::Kubeconfig(path.to_owned())),
            None => AccessSource::from_pod(|name| env::var(name).ok(), Path::new(SERVICE_ACCOUNT)),
        }
    }

    /// Returns the access of a pod with these environment variables.
    pub fn from_pod(
        variable: impl Fn(&str) -> Option<String>,
        service_account: &Path,
    ) -> Result<AccessSource> {
        let set = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"].map(variable);
        let [Some(mut host), Some(port)] = set else {
            bail!(
                "finding the API server: this is not a Kubernetes pod, and no kubeconfig is set; \
                 use --kubeconfig"
            );
        };
        // IPv6 addresses need brackets.
        if host.contains(':') {
            host = format!("[{host}]");
        }
        Ok(AccessSource::Pod {
            server: parse_server(&format!("https://{host}:{port}"))?,
            service_account: service_account.to_owned(),
        })
    }

    /// Reads the files.
    pub(crate) fn open(&self) -> Result<ApiAccess> {
        let (server, service_account) = match self {
            AccessSource::Kubeconfig(path) => return ApiAccess::from_kubeconfig(path),
            AccessSource::Pod { server, service_account } => (server, service_account),
        };
        let authorities = service_account.join("ca.crt");
        Ok(ApiAccess {
            server: server.clone(),
            tls: TlsFiles {
                origin: authorities.display().to_string(),
                authorities: read(&authorities)?,
                client: None,
            },
            token: None,
            token_file: Some(service_account.join("token")),
        })
    }
}

pub(super) fn parse_server(text: &str) -> Result<String> {
    let trimmed = text.trim_end_matches('/');
    let uri: Option<Uri> = trimmed.parse().ok();
    let is_server = uri.is_some_and(|uri| {
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        is_http && uri.authority().is_some() && uri.query().is_none()
    });
    if !is_server {
        let text = Quoted(text);
        bail!("{text} is not an address of an API server; expected https://HOST:PORT");
    }
    Ok(trimmed.to_owned())
}

impl ApiAccess {
    /// Reads the token now, since kubelet replaces that of a pod before it expires.
    pub(super) fn read_token(&self) -> Result<Option<String>> {
        match &self.token_file {
            Some(path) => Ok(Some(String::from_utf8_lossy(&read(path)?).trim().to_owned())),
            None => Ok(self.token.clone()),
        }
    }
}

impl TlsFiles {
    pub(crate) fn client_config(&self) -> Result<ClientConfig> {
        let authorities = Authorities::parse(&self.authorities, self.origin.clone())?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("reading versions of TLS for the API server")?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier { authorities, algorithms }));
        Ok(match &self.client {
            Some((certificate, key)) => {
                let certified_key = load_certified_key(certificate, key)
                    .with_context(|| format!("reading {}", self.origin))?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified_key)))
            }
            None => builder.with_no_client_auth(),
        })
    }
}

/// Returns the context of an error.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {} for the API server", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn pod(variables: &[(&str, &str)], directory: &Path) -> Result<ApiAccess> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        AccessSource::from_pod(variable, directory)?.open()
    }

    #[test]
    fn what_is_no_pod_says_what_to_give() {
        let dir = tempfile::tempdir().unwrap();
        for variables in [&[][..], &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]] {
            let error = pod(variables, dir.path()).err().unwrap().to_string();
            assert!(error.contains("use --kubeconfig"), "{error}");
        }
        let variables =
            [("KUBERNETES_SERVICE_HOST", "fd00::1"), ("KUBERNETES_SERVICE_PORT", "443")];
        let error = pod(&variables, dir.path()).err().unwrap().to_string();
        assert!(error.contains("ca.crt for the API server"), "{error}");
        fs::write(dir.path().join("ca.crt"), "").unwrap();
        fs::write(dir.path().join("token"), "secret\n").unwrap();
        let access = pod(&variables, dir.path()).unwrap();
        assert_eq!(access.server, "https://[fd00::1]:443");
        assert_eq!(access.read_token().unwrap().as_deref(), Some("secret"));
    }

    #[test]
    fn a_server_is_an_address_of_http() {
        assert_eq!(parse_server("https://n1:6443/").unwrap(), "https://n1:6443");
        for bad in ["", "n1:6443", "ftp://n1", "https://", "https://n1/?a=b", "https://a b"] {
            assert!(parse_server(bad).is_err(), "{bad}");
        }
    }
}
