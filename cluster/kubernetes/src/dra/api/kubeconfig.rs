//! A kubeconfig file, for a daemon outside of a pod.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::ByteString;
use rustls::client::ResolvesClientCert;
use serde::Deserialize;

use super::access::{ApiAccess, ApiToken, PemSource, TlsFiles, parse_server, read};
use super::certificate::ClientCertificate;

/// The parts that are used (`Config` in staging/src/k8s.io/client-go/tools/clientcmd/api/v1 of Kubernetes).
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: String,
    clusters: Vec<NamedEntry<Cluster>>,
    contexts: Vec<NamedEntry<KubeContext>>,
    users: Vec<NamedEntry<KubeUser>>,
}

#[derive(Deserialize)]
struct NamedEntry<T> {
    name: String,
    #[serde(
        rename = "cluster, context or user",
        alias = "cluster",
        alias = "context",
        alias = "user"
    )]
    content: T,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<ByteString>,
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
    tls_server_name: Option<String>,
}

#[derive(Deserialize)]
struct KubeContext {
    cluster: String,
    user: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct KubeUser {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<ByteString>,
    client_key: Option<PathBuf>,
    client_key_data: Option<ByteString>,
    exec: Option<serde::de::IgnoredAny>,
    #[serde(rename = "auth-provider")]
    auth_provider: Option<serde::de::IgnoredAny>,
    username: Option<String>,
}

impl ApiAccess {
    pub fn from_kubeconfig(path: &Path) -> Result<ApiAccess> {
        let text = String::from_utf8_lossy(&read(path)?).into_owned();
        let shown = path.display();
        let config: Kubeconfig =
            serde_saphyr::from_str(&text).with_context(|| format!("reading kubeconfig {shown}"))?;
        let unusable = || format!("kubeconfig {shown}");
        let (cluster, user) = resolve_context(&config).with_context(unusable)?;
        refuse(cluster, user).with_context(unusable)?;
        let base = path.parent().unwrap_or(Path::new(""));
        let content = |data: &Option<ByteString>, file: &Option<PathBuf>| match (data, file) {
            (Some(data), _) => Some(PemSource::Data(data.0.clone())),
            (None, Some(file)) => Some(PemSource::File(base.join(file))),
            (None, None) => None,
        };
        let authorities =
            content(&cluster.certificate_authority_data, &cluster.certificate_authority);
        let authorities = match authorities {
            Some(authorities) => authorities,
            None if cluster.server.starts_with("https:") => {
                bail!("kubeconfig {shown}: the cluster has no certificate-authority; add it")
            }
            None => PemSource::Data(Vec::new()),
        };
        let certificate = content(&user.client_certificate_data, &user.client_certificate);
        let key = content(&user.client_key_data, &user.client_key);
        let client_cert: Option<Arc<dyn ResolvesClientCert>> = match certificate.zip(key) {
            Some((certificate, key)) => Some(Arc::new(ClientCertificate::open(certificate, key)?)),
            None => None,
        };
        let token = match (&user.token_file, &user.token) {
            (Some(file), _) => ApiToken::File(base.join(file)),
            (None, Some(token)) => ApiToken::Text(token.clone()),
            (None, None) => ApiToken::None,
        };
        Ok(ApiAccess {
            server: parse_server(&cluster.server)?,
            tls: TlsFiles::open(authorities, client_cert)?,
            token,
        })
    }
}

fn resolve_context(config: &Kubeconfig) -> Result<(&Cluster, &KubeUser)> {
    let named = &config.current_context;
    let context = find(&config.contexts, named)
        .with_context(|| format!("context {named:?} not found; set current-context"))?;
    let cluster = find(&config.clusters, &context.cluster)
        .with_context(|| format!("cluster {:?} not found", context.cluster))?;
    let user = find(&config.users, &context.user)
        .with_context(|| format!("user {:?} not found", context.user))?;
    Ok((cluster, user))
}

fn find<'a, T>(all: &'a [NamedEntry<T>], name: &str) -> Option<&'a T> {
    let entry = all.iter().find(|entry| entry.name == name)?;
    Some(&entry.content)
}

/// Rejects features of kubeconfig files that this client does not support.
fn refuse(cluster: &Cluster, user: &KubeUser) -> Result<()> {
    let unserved = [
        (
            cluster.insecure_skip_tls_verify,
            "insecure-skip-tls-verify is not allowed; set certificate-authority",
        ),
        (cluster.proxy_url.is_some(), "proxy-url is not supported; use an address without a proxy"),
        (
            cluster.tls_server_name.is_some(),
            "tls-server-name is not supported; use an address that the certificate contains",
        ),
        (
            user.exec.is_some() || user.auth_provider.is_some() || user.username.is_some(),
            "credentials from a program or a password are not supported; use a token, tokenFile or \
             client-certificate",
        ),
    ];
    match unserved.iter().find(|(is_there, _)| *is_there) {
        Some((_, why)) => bail!(*why),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn access(cluster: &str, user: &str) -> Result<ApiAccess> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        fs::write(dir.path().join("ca.crt"), "").unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\npreferences: {{}}\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\nclusters:\n- name: k\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        );
        fs::write(&path, text).unwrap();
        ApiAccess::from_kubeconfig(&path)
    }

    #[test]
    fn the_current_context_says_where_and_who() {
        let access =
            access("server: 'https://n1:6443', certificate-authority: ca.crt", "tokenFile: token")
                .unwrap();
        assert_eq!(access.server, "https://n1:6443");
        assert!(matches!(access.token, ApiToken::File(path) if path.ends_with("token")));
    }

    #[test]
    fn what_is_not_served_is_refused_with_what_to_do() {
        let good = "server: 'https://n1:6443', certificate-authority: ca.crt";
        let with = |more: &str| format!("{good}, {more}");
        for (cluster, user, why) in [
            ("server: 'https://n1:6443'".to_owned(), "token: t", "certificate-authority"),
            (with("insecure-skip-tls-verify: true"), "token: t", "insecure-skip-tls-verify"),
            (with("proxy-url: 'http://p'"), "token: t", "proxy-url"),
            (with("tls-server-name: x"), "token: t", "tls-server-name"),
            (good.to_owned(), "exec: {command: aws}", "tokenFile"),
            (good.to_owned(), "username: u, password: p", "tokenFile"),
            ("server: 'n1'".to_owned(), "token: t", "not an address of an API server"),
            ("server: [".to_owned(), "token: t", "reading kubeconfig"),
        ] {
            let error = format!("{:#}", access(&cluster, user).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_context_that_is_not_there_is_named() {
        let config = Kubeconfig { current_context: "gone".to_owned(), ..Kubeconfig::default() };
        let why = resolve_context(&config).err().unwrap().to_string();
        assert_eq!(why, "context \"gone\" not found; set current-context");
    }
}
