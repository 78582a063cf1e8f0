//! A kubeconfig file, for a daemon outside of a pod.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use kube_client::config::{AuthInfo, Cluster, Kubeconfig};
use secrecy::ExposeSecret;

use super::access::{ApiAccess, TlsFiles, parse_server, read};

impl ApiAccess {
    pub(super) fn from_kubeconfig(path: &Path) -> Result<ApiAccess> {
        read_kubeconfig(path).with_context(|| format!("reading kubeconfig {}", path.display()))
    }
}

fn read_kubeconfig(path: &Path) -> Result<ApiAccess> {
    let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
    // By default an error quotes the lines around it, which may have a token.
    let options = serde_saphyr::options! { with_snippet: false };
    let config: Kubeconfig = serde_saphyr::from_str_with_options(&text, options)?;
    let (cluster, user) = resolve_context(&config)?;
    refuse(cluster, user)?;
    let base = path.parent().unwrap_or(Path::new(""));
    let pem = |data: Option<&str>, file: &Option<String>| -> Result<Option<Vec<u8>>> {
        match data {
            Some(data) => decode(data).map(Some),
            None => file.as_ref().map(|file| read(&base.join(file))).transpose(),
        }
    };
    let server = cluster.server.as_deref().unwrap_or_default();
    let authorities =
        pem(cluster.certificate_authority_data.as_deref(), &cluster.certificate_authority)?;
    if authorities.is_none() && server.starts_with("https:") {
        bail!("the cluster has no certificate-authority; add it");
    }
    let certificate = pem(user.client_certificate_data.as_deref(), &user.client_certificate)?;
    let key_data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    let key = pem(key_data, &user.client_key)?;
    Ok(ApiAccess {
        server: parse_server(server)?,
        token: user.token.as_ref().map(|token| token.expose_secret().to_owned()),
        token_file: user.token_file.as_ref().map(|file| base.join(file)),
        tls: TlsFiles {
            origin: path.display().to_string(),
            authorities: authorities.unwrap_or_default(),
            client: certificate.zip(key),
        },
    })
}

/// Decodes base64.
fn decode(data: &str) -> Result<Vec<u8>> {
    let ByteString(bytes) = serde_json::from_value(data.into())?;
    Ok(bytes)
}

fn resolve_context(config: &Kubeconfig) -> Result<(&Cluster, &AuthInfo)> {
    let name = config.current_context.as_deref().unwrap_or_default();
    let context = config
        .contexts
        .iter()
        .find(|entry| entry.name == name)
        .and_then(|entry| entry.context.as_ref())
        .with_context(|| format!("context {name:?} not found; set current-context"))?;
    let cluster = config
        .clusters
        .iter()
        .find(|entry| entry.name == context.cluster)
        .and_then(|entry| entry.cluster.as_ref())
        .with_context(|| format!("cluster {:?} not found", context.cluster))?;
    let user_name = context.user.as_deref().unwrap_or_default();
    let user = config
        .auth_infos
        .iter()
        .find(|entry| entry.name == user_name)
        .and_then(|entry| entry.auth_info.as_ref())
        .with_context(|| format!("user {user_name:?} not found"))?;
    Ok((cluster, user))
}

/// Rejects features of kubeconfig files that this client does not support.
fn refuse(cluster: &Cluster, user: &AuthInfo) -> Result<()> {
    if cluster.insecure_skip_tls_verify == Some(true) {
        bail!("insecure-skip-tls-verify is not allowed; set certificate-authority");
    }
    if cluster.proxy_url.is_some() {
        bail!("proxy-url is not supported; use an address without a proxy");
    }
    if cluster.tls_server_name.is_some() {
        bail!("tls-server-name is not supported; use an address that the certificate contains");
    }
    if user.exec.is_some() || user.auth_provider.is_some() || user.username.is_some() {
        bail!(
            "credentials from a program or a password are not supported; use a token, tokenFile or \
             client-certificate"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
        assert!(access.token_file.unwrap().ends_with("token"));
    }

    #[test]
    fn an_error_in_the_file_quotes_no_token() {
        let good = "server: 'https://n1:6443', certificate-authority: ca.crt";
        let error = access(good, "token: s3cret, exec: 7").err().unwrap();
        assert!(!format!("{error:#}").contains("s3cret"), "{error:#}");
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
            let error = format!("{:#}", access(&cluster, user).err().unwrap());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_context_that_is_not_there_is_named() {
        let config =
            Kubeconfig { current_context: Some("gone".to_owned()), ..Kubeconfig::default() };
        let why = resolve_context(&config).err().unwrap().to_string();
        assert_eq!(why, "context \"gone\" not found; set current-context");
    }
}
