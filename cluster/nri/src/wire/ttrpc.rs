//! ttrpc: a header of ten bytes (length, stream, type, flags; github.com/containerd/ttrpc, PROTOCOL.md)
//! before a protobuf message. A client's streams have odd numbers, each one call.

use onload_sys::error::Result;
use onload_sys::{bail, error};
use prost::Message as _;

pub use super::generated::google::rpc::Status;
pub use super::generated::ttrpc::{Request, Response};

pub const HEADER: usize = 10;
/// The longest message (channel.go, `messageLengthMax`).
pub const MAX_MESSAGE: usize = 4 << 20;

pub const REQUEST: u8 = 1;
pub const RESPONSE: u8 = 2;

/// These three are of google.rpc.Code.
pub const INVALID_ARGUMENT: i32 = 3;
pub const FAILED_PRECONDITION: i32 = 9;
pub const UNIMPLEMENTED: i32 = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TtrpcMessage {
    pub stream: u32,
    /// [`REQUEST`] or [`RESPONSE`].
    pub kind: u8,
    pub flags: u8,
    pub body: Vec<u8>,
}

/// Removes the first message from the received bytes if it is complete. After an error the connection cannot be used
/// further.
pub fn parse_message(bytes: &mut Vec<u8>) -> Result<Option<TtrpcMessage>> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let [a, b, c, d, e, f, g, h, kind, flags] = *header;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        bail!("{}", too_long_error(length));
    }
    if kind != REQUEST && kind != RESPONSE {
        bail!("a ttrpc message of type {kind}, which a plugin does not support");
    }
    if bytes.len() < HEADER + length {
        return Ok(None);
    }
    let rest = bytes.split_off(HEADER + length);
    let mut body = std::mem::replace(bytes, rest);
    body.drain(..HEADER);
    Ok(Some(TtrpcMessage { stream: u32::from_be_bytes([e, f, g, h]), kind, flags, body }))
}

fn too_long_error(length: usize) -> String {
    format!("a ttrpc message of {length} bytes; at most {MAX_MESSAGE} are allowed")
}

pub fn encode(message: &TtrpcMessage) -> Result<Vec<u8>> {
    let length = message.body.len();
    let short = u32::try_from(length)
        .ok()
        .filter(|_| length <= MAX_MESSAGE)
        .ok_or_else(|| error!("{}", too_long_error(length)))?;
    let mut bytes = Vec::with_capacity(HEADER + length);
    bytes.extend(short.to_be_bytes());
    bytes.extend(message.stream.to_be_bytes());
    bytes.extend([message.kind, message.flags]);
    bytes.extend(&message.body);
    Ok(bytes)
}

impl Response {
    #[must_use]
    pub fn ok(payload: Vec<u8>) -> Self {
        Response { status: None, payload }
    }

    #[must_use]
    pub fn error(code: i32, message: String) -> Self {
        Response { status: Some(Status { code, message }), payload: Vec::new() }
    }

    #[must_use]
    pub fn to_message(&self, stream: u32) -> TtrpcMessage {
        TtrpcMessage { stream, kind: RESPONSE, flags: 0, body: self.encode_to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_taken_when_all_of_it_has_come() {
        let sent =
            TtrpcMessage { stream: 0x0102_0304, kind: RESPONSE, flags: 1, body: b"abc".to_vec() };
        let bytes = encode(&sent).unwrap();
        assert_eq!(bytes, b"\0\0\0\x03\x01\x02\x03\x04\x02\x01abc");
        for length in 0..bytes.len() {
            let mut part = bytes[..length].to_vec();
            assert_eq!(parse_message(&mut part).unwrap(), None);
            assert_eq!(part.len(), length);
        }
        let mut more = [&bytes[..], b"rest"].concat();
        assert_eq!(parse_message(&mut more).unwrap(), Some(sent));
        assert_eq!(more, b"rest");
    }

    #[test]
    fn a_message_that_the_protocol_does_not_have_is_a_violation() {
        let header = |length: u32, kind: u8| {
            let mut bytes = length.to_be_bytes().to_vec();
            bytes.extend([0, 0, 0, 1, kind, 0]);
            bytes
        };
        let long = u32::try_from(MAX_MESSAGE).unwrap() + 1;
        let refusal = |mut header| parse_message(&mut header).unwrap_err().to_string();
        assert_eq!(
            refusal(header(long, REQUEST)),
            "a ttrpc message of 4194305 bytes; at most 4194304 are allowed"
        );
        assert_eq!(
            refusal(header(0, 3)),
            "a ttrpc message of type 3, which a plugin does not support"
        );
        assert_eq!(parse_message(&mut header(long - 1, REQUEST)).unwrap(), None);
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let message =
            TtrpcMessage { stream: 1, kind: RESPONSE, flags: 0, body: vec![0; MAX_MESSAGE + 1] };
        assert_eq!(
            encode(&message).unwrap_err().to_string(),
            "a ttrpc message of 4194305 bytes; at most 4194304 are allowed"
        );
    }
}
