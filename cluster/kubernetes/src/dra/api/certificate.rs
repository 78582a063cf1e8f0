//! The client certificate for the API server.

use anyhow::{Context, Result, bail};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};

use super::server_verifier::parse_as_authority;

/// Fails if the key is not that of the certificate, for example while only one of the files is renewed.
pub(super) fn load_certified_key(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .context("reading the client's certificate for the API server")?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .context("reading the client's key for the API server")?;
    let context = "reading the client's certificate and key for the API server";
    let key = aws_lc_rs::default_provider().key_provider.load_private_key(key).context(context)?;
    check_pair(&chain, key.as_ref()).context(context)?;
    Ok(CertifiedKey::new(chain, key))
}

/// Fails if the first certificate has another key. [`CertifiedKey::keys_match`] does not parse X.509 v1, which MicroK8s
/// 1.34 writes; the parser of authorities does.
fn check_pair(chain: &[CertificateDer<'_>], key: &dyn SigningKey) -> Result<()> {
    let certificate = chain.first().context("certificate not found")?;
    let parsed = parse_as_authority(certificate)?;
    // The parser omits the tag and length of the outer sequence.
    let of_certificate = &parsed.subject_public_key_info;
    match key.public_key() {
        Some(of_key) if !of_key.ends_with(of_certificate) => {
            bail!("the key does not match the certificate")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustls::SignatureScheme;

    use super::*;

    fn file(name: &str) -> String {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/tls");
        fs::read_to_string(directory.join(name)).unwrap()
    }

    #[test]
    fn keys_of_p_521_and_certificates_of_x_509_v1_are_shown() {
        let load = |certificate: &str, key: &str| {
            load_certified_key(file(certificate).as_bytes(), file(key).as_bytes())
        };
        let shown = load("p521-server.crt", "p521-server.key").unwrap();
        assert!(shown.key.choose_scheme(&[SignatureScheme::ECDSA_NISTP521_SHA512]).is_some());
        assert!(load("v1-client.crt", "v1-client.key").is_ok());
        let error = format!("{:#}", load("v1-client.crt", "server.key").unwrap_err());
        assert!(error.ends_with("the key does not match the certificate"), "{error}");
    }

    #[test]
    fn what_cannot_be_shown_is_refused() {
        let open = |certificate: &str, key: &str| {
            let error = load_certified_key(certificate.as_bytes(), key.as_bytes()).unwrap_err();
            format!("{error:#}")
        };
        let broken = "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n";
        let key = file("server.key");
        for (certificate, key, why) in [
            (broken, key.as_str(), "reading the client's certificate for the API server"),
            ("", "no key", "reading the client's key for the API server"),
            (&file("ca.crt"), &key, "reading the client's certificate and key for the API server"),
        ] {
            let error = open(certificate, key);
            assert!(error.starts_with(why), "{error}");
        }
    }
}
