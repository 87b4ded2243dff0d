//! Converts errors of elements to messages for the user. A message names the source and the server's response, and says what the
//! user can do.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use gst::glib::translate::IntoGlib;
use gst::prelude::*;
use gstreamer as gst;

use super::plan::SOURCE;
use super::{Error, Input, Plan, streams};
use crate::intake::{Intake, factory_name};

/// Maximum time to find out why a server could not be reached.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// Returns the name of the input for messages, without user and password.
pub(super) fn name(plan: &Plan) -> String {
    streams::redacted(&plan.input.name())
}

/// Whether a message comes from the elements that read and decode the input.
pub(super) fn is_from_source(plan: &Plan, object: Option<&gst::Object>) -> bool {
    !matches!(plan.input, Input::Application) && object.is_some_and(is_in_source)
}

/// Whether the object is the element that reads and decodes the input, or an object inside that element.
pub(super) fn is_in_source(object: &gst::Object) -> bool {
    std::iter::successors(Some(object.clone()), |object| object.parent()).any(|object| object.name() == SOURCE)
}

/// The reason why a stream failed.
pub(super) enum Reason {
    Known(Error),
    /// An error message of an element. `has_played` is true if frames of the input have already arrived.
    OfElement {
        message: gst::Message,
        has_played: bool,
    },
}

impl Reason {
    /// Whether the elements that read and decode the input failed, and a later attempt may succeed. False for a missing decoder,
    /// because it would also be missing in a later attempt.
    pub(super) fn is_of_source(&self, plan: &Plan) -> bool {
        let Self::OfElement { message, .. } = self else { return false };
        let gst::MessageView::Error(error) = message.view() else { return false };
        let kind = error.error();
        let is_missing = kind.matches(gst::CoreError::MissingPlugin) || kind.matches(gst::StreamError::CodecNotFound);
        is_from_source(plan, error.src()) && !is_missing
    }

    /// Whether the server or the system refuses to deliver the stream: a wrong password, an unknown stream, a missing device, no video that
    /// can be decoded.
    pub(super) fn is_refusal(&self, intake: Option<&Intake>) -> bool {
        let Self::OfElement { message, .. } = self else { return false };
        let gst::MessageView::Error(error) = message.view() else { return false };
        let kind = error.error();
        let is_no = |code: u32| matches!(code, 300..=499) && !matches!(code, 408 | 429 | 453);
        let has_answer = status(error).is_some_and(|(_, code)| is_no(code));
        has_answer
            || intake.is_some_and(|intake| intake.undecodable(error).is_some())
            || kind.matches(gst::ResourceError::NotFound)
            || kind.matches(gst::ResourceError::NotAuthorized)
            || kind.matches(gst::StreamError::TypeNotFound)
            || kind.matches(gst::StreamError::WrongType)
    }

    /// Converts the reason to an error. May contact a server, for a few seconds.
    pub(super) fn explain(self, plan: &Plan, intake: Option<&Intake>) -> Error {
        match self {
            Self::Known(error) => error,
            Self::OfElement { message, has_played } => match message.view() {
                gst::MessageView::Error(error) => explain(plan, intake, error, has_played),
                _ => Error::failed("internal error: expected an error message of GStreamer, got another message"),
            },
        }
    }
}

fn explain(plan: &Plan, intake: Option<&Intake>, error: &gst::message::Error, has_played: bool) -> Error {
    let (reason, details) = (error.error(), error.debug().unwrap_or_default());
    tracing::debug!("{}", plan.input.secrets().scrub(&details));
    let text = without_debug(reason.message()).trim_end_matches('.').to_owned();
    let is_no_media = matches!(reason.kind::<gst::StreamError>(), Some(gst::StreamError::TypeNotFound | gst::StreamError::WrongType));
    if !is_from_source(plan, error.src()) && !is_no_media {
        let element = error.src().map(|source| source.name().to_string()).unwrap_or_default();
        return Error::failed(format!("{element}: {text}"));
    }
    let name = name(plan);
    let what = if has_played { "lost the source" } else { "cannot play" };
    // Elements fail after data was refused.
    let excess = intake.and_then(Intake::excess);
    if let Some(answer) = excess.or_else(|| missing_login(plan, error)).or_else(|| answer(error)).or_else(|| intake?.undecodable(error)) {
        return Error::failed(format!("{what} `{name}`: {answer}"));
    }
    // If no connection was made, network elements do not report why. So try to connect, and report the reason of that failure.
    let origin = error.src().and_then(|source| source.downcast_ref::<gst::Element>()).filter(|element| is_network(element));
    if let Some(origin) = origin {
        let broke_off = || if has_played { "the connection was closed".to_owned() } else { text.clone() };
        let cause = unreachable(origin).unwrap_or_else(broke_off);
        return Error::failed(format!("{what} `{name}`: {cause}"));
    }
    // If the input has only audio, GStreamer's error does not say that video is missing. So add a hint.
    let flow = error.details().and_then(|details| details.get::<i32>("flow-return").ok());
    let no_video = flow == Some(gst::FlowError::NotLinked.into_glib()) || reason.kind() == Some(gst::CoreError::MissingPlugin);
    let hint = if no_video { "; expected a file or stream with video" } else { "" };
    Error::failed(format!("{what} `{name}`: {text}{hint}"))
}

/// Returns the text of an error without the debug information of another error, which elements append that fetch the parts of a playlist.
fn without_debug(text: &str) -> &str {
    let end = [": ../", ": src/"].iter().filter_map(|file| text.find(file)).min();
    &text[..end.unwrap_or(text.len())]
}

/// Returns the protocol and the status code with which an HTTP or RTSP server has refused a request; `None` if the error has no
/// such status.
fn status(error: &gst::message::Error) -> Option<(&'static str, u32)> {
    let details = error.details()?;
    let of = |protocol: &str| details.get::<u32>(&format!("{protocol}-status-code")).ok().filter(|code| *code >= 300);
    of("http").map(|code| ("HTTP", code)).or_else(|| of("rtsp").map(|code| ("RTSP", code)))
}

/// Describes the response of an HTTP or RTSP server, with advice.
fn answer(error: &gst::message::Error) -> Option<String> {
    let (protocol, code) = status(error)?;
    let advice = match code {
        401 | 403 | 407 => "the server refused the user name or the password",
        404 | 410 => "the server has no such stream or file; check the path",
        453 | 503 => "the server is busy",
        500.. => "the server failed",
        _ => "the server refused",
    };
    Some(format!("{advice} ({protocol} status {code})"))
}

/// Returns why a server refuses a request without a login, if it is not the server that gets the login of the input.
fn missing_login(plan: &Plan, error: &gst::message::Error) -> Option<String> {
    let Input::Uri(uri) = &plan.input else { return None };
    let (_, code) = status(error).filter(|(_, code)| *code == 401)?;
    let origin = error.src()?.downcast_ref::<gst::Element>().filter(|element| is_network(element))?;
    let reason = uri.missing_login(&origin.property::<Option<String>>("location")?)?;
    Some(format!("{reason} (status {code})"))
}

fn is_network(element: &gst::Element) -> bool {
    ["rtspsrc", "souphttpsrc", "curlhttpsrc"].contains(&factory_name(element).as_str())
}

/// Tries to connect to the server. Returns the reason if the connection fails.
fn unreachable(origin: &gst::Element) -> Option<String> {
    let handler = origin.dynamic_cast_ref::<gst::URIHandler>()?;
    let uri = handler.uri()?;
    let (scheme, host, port) = address(&uri)?;
    let is_secure = scheme == "https" || scheme == "rtsps";
    let (sender, receiver) = mpsc::channel();
    let (of_thread, no_answer) = (host.clone(), format!("{host} does not answer on port {port}"));
    // Use a separate thread, because a name lookup cannot be canceled. After a timeout, nothing waits for the thread, which ends
    // by itself.
    let spawned = std::thread::Builder::new().name("roiflow-connect".to_owned()).spawn(move || {
        let connected = (&*of_thread, port)
            .to_socket_addrs()
            .map(|mut addresses| addresses.next().map(|address| TcpStream::connect_timeout(&address, MAX_WAIT)));
        // Sending fails if the receiver has timed out.
        let _sent = sender.send(connected);
    });
    spawned.ok()?;
    match receiver.recv_timeout(MAX_WAIT) {
        Err(_) => Some(format!("{no_answer}; check the address and the network")),
        Ok(Err(_) | Ok(None)) => Some(format!("no address is known for the host {host}; check its name and the network")),
        Ok(Ok(Some(Err(error)))) if error.kind() == std::io::ErrorKind::TimedOut => {
            Some(format!("{no_answer}; check the address and the network"))
        }
        Ok(Ok(Some(Err(error)))) => Some(format!("cannot connect to port {port} of {host}: {error}; check that the server runs")),
        Ok(Ok(Some(Ok(_)))) if is_secure => {
            Some(format!("the TLS handshake with {host} failed; check its certificate, or whether port {port} speaks TLS"))
        }
        Ok(Ok(Some(Ok(_)))) => None,
    }
}

/// Returns the scheme, host and port of a URI.
pub(super) fn address(uri: &str) -> Option<(String, String, u16)> {
    let (scheme, rest) = uri.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port.parse().ok()?)),
        _ => (place, None),
    };
    let known = match scheme {
        "https" => 443,
        "rtsps" => 322,
        scheme if scheme.starts_with("rtsp") => 554,
        _ => 80,
    };
    let host = host.trim_matches(['[', ']']);
    (!host.is_empty()).then(|| (scheme.to_owned(), host.to_owned(), port.unwrap_or(known)))
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn uri_has_scheme_host_and_port() {
        for (uri, expected) in [
            ("http://host/a.mp4", Some(("http", "host", 80))),
            ("https://u:p@host:8443/a?b=c:1", Some(("https", "host", 8443))),
            ("rtsp://u:p@ss@10.0.0.1/live", Some(("rtsp", "10.0.0.1", 554))),
            ("rtsps://[::1]/live", Some(("rtsps", "::1", 322))),
            ("http://[::1]:81", Some(("http", "::1", 81))),
            ("http://host:x/", None),
            ("http:///a", None),
            ("file", None),
        ] {
            let expected = expected.map(|(scheme, host, port)| (scheme.to_owned(), host.to_owned(), port));
            assert_eq!(address(uri), expected, "{uri}");
        }
    }
}
