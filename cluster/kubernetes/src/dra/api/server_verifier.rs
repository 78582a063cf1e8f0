//! Verifies the API server's certificate by the same rules as kubectl and kubelet (Go's `crypto/x509`).

use std::sync::Arc;

use anyhow::{Result, bail};
use memchr::memmem;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

const BEGIN: &[u8] = b"-----BEGIN ";

/// The certificates of a trusted PEM file.
#[derive(Debug)]
pub(super) struct Authorities {
    certificates: Vec<CertificateDer<'static>>,
    roots: RootCertStore,
    /// The file, for messages.
    origin: String,
}

impl Authorities {
    /// Skips and logs certificates that cannot be parsed. Fails if the last one has no END line: the file is being written.
    pub(super) fn parse(pem: &[u8], origin: String) -> Result<Authorities> {
        let starts: Vec<usize> = memmem::find_iter(pem, BEGIN).collect();
        let ends = starts.iter().skip(1).copied().chain([pem.len()]);
        let mut authorities =
            Authorities { certificates: Vec::new(), roots: RootCertStore::empty(), origin };
        let mut skipped = Vec::new();
        for (index, (start, end)) in starts.iter().zip(ends).enumerate() {
            let result = match CertificateDer::from_pem_slice(&pem[*start..end]) {
                Ok(certificate) => authorities.add(certificate).map_err(|error| error.to_string()),
                Err(PemError::NoItemsFound) => continue,
                Err(PemError::MissingSectionEnd { .. } | PemError::IllegalSectionStart { .. })
                    if end == pem.len() =>
                {
                    bail!(
                        "reading {}: the last certificate has no END line; write the file as a whole",
                        authorities.origin
                    );
                }
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = result {
                skipped.push(format!("block {} of {}: {error}", index + 1, authorities.origin));
            }
        }
        if authorities.roots.is_empty() && !skipped.is_empty() {
            bail!(
                "reading the certificate authority for the API server: {}; replace the certificate",
                skipped.join("; ")
            );
        }
        for certificate in skipped {
            tracing::warn!(%certificate, "certificate authority skipped: it cannot be parsed; replace or remove it");
        }
        Ok(authorities)
    }

    fn add(&mut self, certificate: CertificateDer<'static>) -> Result<(), Error> {
        self.roots.add(certificate.clone())?;
        self.certificates.push(certificate);
        Ok(())
    }
}

/// Accepts certificates that an authority has signed, and one that is itself among the authorities.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    pub(super) authorities: Authorities,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerVerifier {
    fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let Authorities { certificates, roots, .. } = &self.authorities;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let is_trusted = certificates.contains(end_entity);
        // Without intermediates, an error about dates concerns the server's own certificate.
        let intermediates = if is_trusted { &[] } else { intermediates };
        let algorithms = self.algorithms.all;
        let result = verify_server_cert_signed_by_trust_anchor(
            &certificate,
            roots,
            intermediates,
            now,
            algorithms,
        );
        match result {
            // webpki checks the dates before it looks for an issuer. `Other` includes an authority as a server.
            Err(Error::InvalidCertificate(
                CertificateError::UnknownIssuer
                | CertificateError::BadSignature
                | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
                | CertificateError::Other(_),
            )) if is_trusted => {}
            result => result?,
        }
        verify_server_name(&certificate, server_name)
    }

    /// Adds the file of the authorities and the remedy to an error.
    fn describe(&self, error: Error) -> Error {
        let Error::InvalidCertificate(error) = error else {
            return error;
        };
        let origin = &self.authorities.origin;
        let reason = match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                "the server's certificate is not signed by an authority in {origin}; add the \
                 cluster's authority there"
            ),
            other => format!(
                "the server's {other}; use an address that the certificate contains, renew it, or \
                 correct the clock of this node"
            ),
        };
        Error::Other(OtherError(Arc::new(UntrustedServer(reason))))
    }
}

/// The reason why the API server's certificate is rejected, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UntrustedServer(String);

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates, server_name, now)
            .map_err(|error| self.describe(error))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Parses a certificate, including X.509 v1.
pub(super) fn parse_as_authority(
    certificate: &CertificateDer<'_>,
) -> Result<TrustAnchor<'static>, Error> {
    let mut parsed = RootCertStore::empty();
    parsed.add(certificate.clone())?;
    Ok(parsed.roots.remove(0))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn file(name: &str) -> Vec<u8> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/tls");
        fs::read(directory.join(name)).unwrap()
    }

    fn parse(pem: &[u8]) -> Result<Authorities> {
        Authorities::parse(pem, "ca.crt".to_owned())
    }

    #[test]
    fn a_certificate_that_cannot_be_parsed_takes_no_other_away() {
        let good = file("ca.crt");
        let broken = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".as_slice();
        let no_base64 = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".as_slice();
        let no_end = b"-----BEGIN CERTIFICATE-----\nMIIB\n".as_slice();
        let key = file("server.key");
        for other in [broken, no_base64, no_end, &key, b"# a comment\n"] {
            let authorities = parse(&[other, good.as_slice()].concat()).unwrap();
            assert_eq!(authorities.certificates.len(), 1, "{}", String::from_utf8_lossy(other));
        }
        for broken in [broken, no_base64] {
            assert_eq!(parse(&[&good, broken].concat()).unwrap().certificates.len(), 1);
            let error = parse(broken).unwrap_err().to_string();
            assert!(
                error.contains("block 1 of ca.crt") && error.ends_with("replace the certificate")
            );
        }
        assert!(parse(b"").unwrap().certificates.is_empty());
    }

    #[test]
    fn a_file_that_ends_within_a_certificate_is_being_written() {
        let good = file("ca.crt");
        let both = [good.as_slice(), &file("next-ca.crt")].concat();
        for length in [good.len() + 20, good.len() + 100, both.len() - 5] {
            let error = parse(&both[..length]).unwrap_err().to_string();
            assert!(error.contains("has no END line"), "{error}");
        }
    }
}
