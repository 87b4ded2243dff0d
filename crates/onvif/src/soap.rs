//! SOAP requests to the services of a device: media profiles, and the addresses of their streams.

use std::io::Read;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};

use crate::{Error, xml};

/// Maximum size of an answer in bytes.
const MAX_ANSWER: u64 = 1 << 20;
/// Maximum number of profiles for which the address of the stream is requested.
const MAX_PROFILES: usize = 64;

const DEVICE: &str = "http://www.onvif.org/ver10/device/wsdl";
const MEDIA: &str = "http://www.onvif.org/ver10/media/wsdl";

/// User and password of a device.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

/// A stream of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Name of the media profile.
    pub profile: String,
    /// Encoding, such as `H264`.
    pub encoding: Option<String>,
    /// Width and height.
    pub size: Option<(u32, u32)>,
    /// Maximum number of frames per second.
    pub rate: Option<u32>,
    /// Address of the stream, as the device reports it. May contain credentials.
    pub uri: String,
}

/// Returns the host of an address of a service, without its port.
pub fn host(service: &str) -> Option<String> {
    let uri = service.parse::<ureq::http::Uri>().ok()?;
    Some(uri.host()?.trim_matches(['[', ']']).to_ascii_lowercase())
}

/// Asks the service of a device for its streams. Each request takes at most `timeout`. The login is sent to the host of `service` only, also
/// if this service names other services.
///
/// # Errors
/// Returns an error if the device cannot be reached, refuses the login, or sends an unexpected answer.
pub fn streams(service: &str, login: Option<&Login>, timeout: Duration) -> Result<Vec<Stream>, Error> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("roiflow/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    let mut client = Client { agent, login, host: host(service), clock: Clock::default() };
    client.clock = client.clock_of(service);
    let capabilities = client.ask(service, DEVICE, "GetCapabilities", "<Category>Media</Category>")?;
    let media = read(&capabilities, &["Media", "XAddr"]).ok_or_else(|| Error::new(format!("{service} has no media service")))?;
    let profiles = client.ask(&media, MEDIA, "GetProfiles", "")?;
    let profiles = profiles_of(&profiles);
    let mut streams = Vec::new();
    for (token, stream) in profiles.into_iter().take(MAX_PROFILES) {
        let body = format!(
            "<StreamSetup><Stream xmlns=\"http://www.onvif.org/ver10/schema\">RTP-Unicast</Stream>\
             <Transport xmlns=\"http://www.onvif.org/ver10/schema\"><Protocol>RTSP</Protocol></Transport></StreamSetup>\
             <ProfileToken>{}</ProfileToken>",
            xml::escaped(&token)
        );
        let answer = client.ask(&media, MEDIA, "GetStreamUri", &body)?;
        if let Some(uri) = read(&answer, &["MediaUri", "Uri"]) {
            streams.push(Stream { uri, ..stream });
        }
    }
    Ok(streams)
}

/// Returns the text of an element of an answer.
fn read(answer: &str, path: &[&'static str]) -> Option<String> {
    xml::text(xml::parse(answer)?.root(), path).filter(|text| !text.is_empty())
}

/// Returns the token and the stream of each profile. The addresses of the streams are still empty.
fn profiles_of(answer: &str) -> Vec<(String, Stream)> {
    let Some(document) = xml::parse(answer) else { return Vec::new() };
    let profile = |node: roxmltree::Node<'_, '_>| {
        let number = |path: &[&'static str]| xml::text(node, path)?.parse().ok();
        let size = number(&["VideoEncoderConfiguration", "Resolution", "Width"]);
        let token = node.attribute("token")?.to_owned();
        let stream = Stream {
            profile: xml::text(node, &["Name"]).filter(|name| !name.is_empty()).unwrap_or_else(|| token.clone()),
            encoding: xml::text(node, &["VideoEncoderConfiguration", "Encoding"]),
            size: size.zip(number(&["VideoEncoderConfiguration", "Resolution", "Height"])),
            rate: number(&["VideoEncoderConfiguration", "RateControl", "FrameRateLimit"]),
            uri: String::new(),
        };
        Some((token, stream))
    };
    xml::all(document.root(), "Profiles").filter_map(profile).collect()
}

/// The difference between the clocks of the device and of this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Clock {
    /// Absolute value of the difference.
    offset: Duration,
    /// Whether the clock of the device is behind.
    is_behind: bool,
}

impl Clock {
    fn of(device: SystemTime, here: SystemTime) -> Self {
        match device.duration_since(here) {
            Ok(offset) => Self { offset, is_behind: false },
            Err(error) => Self { offset: error.duration(), is_behind: true },
        }
    }

    fn now(self) -> SystemTime {
        let now = SystemTime::now();
        let shifted = if self.is_behind { now.checked_sub(self.offset) } else { now.checked_add(self.offset) };
        shifted.unwrap_or(now)
    }
}

struct Client<'a> {
    agent: ureq::Agent,
    login: Option<&'a Login>,
    /// The host that gets the login.
    host: Option<String>,
    clock: Clock,
}

impl Client<'_> {
    /// Returns the difference between the clocks of the device and of this machine. Devices should report their time without a login. If a
    /// device does not, the difference is taken as zero.
    fn clock_of(&self, service: &str) -> Clock {
        let Ok(answer) = self.post(service, DEVICE, "GetSystemDateAndTime", "", "") else { return Clock::default() };
        time_of(&answer).map(|time| Clock::of(time, SystemTime::now())).unwrap_or_default()
    }

    /// Sends a request with the login.
    fn ask(&self, service: &str, namespace: &str, action: &str, body: &str) -> Result<String, Error> {
        let login = self.login.filter(|_| self.host.is_some() && host(service) == self.host);
        let header = login.map(|login| security(login, self.clock.now())).transpose()?.unwrap_or_default();
        self.post(service, namespace, action, body, &header)
    }

    fn post(&self, service: &str, namespace: &str, action: &str, body: &str, header: &str) -> Result<String, Error> {
        if !service.starts_with("http://") {
            return Err(Error::new(format!("expected an ONVIF service by http://, got `{service}`")));
        }
        let envelope = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><e:Envelope xmlns:e=\"http://www.w3.org/2003/05/soap-envelope\">\
             <e:Header>{header}</e:Header><e:Body><{action} xmlns=\"{namespace}\">{body}</{action}></e:Body></e:Envelope>"
        );
        let kind = format!("application/soap+xml; charset=utf-8; action=\"{namespace}/{action}\"");
        let sent = self.agent.post(service).header("content-type", &kind).send(envelope.as_bytes());
        let mut answer = sent.map_err(|error| Error::new(format!("{service} does not answer: {error}")))?;
        let status = answer.status().as_u16();
        let mut text = String::new();
        let mut reader = answer.body_mut().as_reader().take(MAX_ANSWER);
        if let Err(error) = reader.read_to_string(&mut text) {
            return Err(Error::new(format!("{service}: the answer to {action} cannot be read: {error}")));
        }
        let reason = fault(&text);
        let is_login = status == 401
            || reason.as_deref().is_some_and(|reason| reason.contains("NotAuthorized") || reason.contains("FailedAuthentication"));
        match (is_login, reason, status) {
            (true, ..) if header.is_empty() => Err(Error::of_login(format!("{service} needs a login"))),
            (true, ..) => Err(Error::of_login(format!("{service} refuses the login"))),
            (false, Some(reason), _) => Err(Error::new(format!("{service} refuses {action}: {reason}"))),
            (false, None, 200) => Ok(text),
            (false, None, _) => Err(Error::new(format!("{service} answers {action} with status {status}"))),
        }
    }
}

/// Returns the reason of a SOAP fault: its codes and its text.
fn fault(answer: &str) -> Option<String> {
    let document = xml::parse(answer)?;
    let fault = xml::all(document.root(), "Fault").next()?;
    let mut parts: Vec<String> = xml::all(fault, "Value").filter_map(|value| xml::text(value, &[])).collect();
    parts.extend(["Reason", "faultstring"].into_iter().filter_map(|name| xml::text(fault, &[name])).filter(|text| !text.is_empty()));
    Some(parts.join(", "))
}

/// Returns the time of an answer to `GetSystemDateAndTime`.
fn time_of(answer: &str) -> Option<SystemTime> {
    let document = xml::parse(answer)?;
    let utc = xml::find(document.root(), &["UTCDateTime"])?;
    let number = |path: &[&'static str]| xml::text(utc, path)?.parse::<u32>().ok();
    let (year, month, day) = (number(&["Date", "Year"])?, number(&["Date", "Month"])?, number(&["Date", "Day"])?);
    let (hour, minute, second) = (number(&["Time", "Hour"])?, number(&["Time", "Minute"])?, number(&["Time", "Second"])?);
    humantime::parse_rfc3339(&format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")).ok()
}

/// Returns the header with a login: the digest of a random number, the time and the password (WS-Security UsernameToken Profile 1.0).
fn security(login: &Login, now: SystemTime) -> Result<String, Error> {
    let mut nonce = [0; 16];
    SystemRandom::new().fill(&mut nonce).map_err(|_| Error::new("cannot read random numbers from the system"))?;
    let created = humantime::format_rfc3339_seconds(now).to_string();
    let digest = password_digest(&nonce, &created, &login.password);
    const WSSE: &str = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss";
    Ok(format!(
        "<s:Security e:mustUnderstand=\"true\" xmlns:s=\"{WSSE}-wssecurity-secext-1.0.xsd\" xmlns:u=\"{WSSE}-wssecurity-utility-1.0.xsd\">\
         <s:UsernameToken><s:Username>{}</s:Username>\
         <s:Password Type=\"{WSSE}-username-token-profile-1.0#PasswordDigest\">{digest}</s:Password>\
         <s:Nonce EncodingType=\"{WSSE}-soap-message-security-1.0#Base64Binary\">{}</s:Nonce>\
         <u:Created>{created}</u:Created></s:UsernameToken></s:Security>",
        xml::escaped(&login.user),
        BASE64_STANDARD.encode(nonce)
    ))
}

fn password_digest(nonce: &[u8], created: &str, password: &str) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    [nonce, created.as_bytes(), password.as_bytes()].into_iter().for_each(|part| context.update(part));
    BASE64_STANDARD.encode(context.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_that_of_the_specification() {
        // The example of ONVIF's application programmer's guide.
        let nonce = BASE64_STANDARD.decode("LKqI6G/AikKCQrN0zqZFlg==").unwrap();
        assert_eq!(password_digest(&nonce, "2010-09-16T07:50:45Z", "userpassword"), "tuOSpGlFlIXsozq4HFNeeGeFLEI=");
    }

    #[test]
    fn header_and_debug_output_do_not_contain_the_password() {
        let login = Login { user: "a<b".to_owned(), password: "secret".to_owned() };
        let header = security(&login, SystemTime::UNIX_EPOCH).unwrap();
        assert!(header.contains("<s:Username>a&lt;b</s:Username>") && header.contains("1970-01-01T00:00:00Z"), "{header}");
        assert!(!header.contains("secret") && !format!("{login:?}").contains("secret"));
    }

    #[test]
    fn clock_of_the_device_is_read() {
        let answer = "<a><SystemDateAndTime><UTCDateTime><Time><Hour>7</Hour><Minute>5</Minute><Second>9</Second></Time>\
                      <Date><Year>2020</Year><Month>1</Month><Day>31</Day></Date></UTCDateTime></SystemDateAndTime></a>";
        let time = time_of(answer).unwrap();
        assert_eq!(humantime::format_rfc3339_seconds(time).to_string(), "2020-01-31T07:05:09Z");
        assert!(Clock::of(time, SystemTime::now()).is_behind);
        let off = Clock::of(time, SystemTime::now()).now().duration_since(time).unwrap();
        assert!(off < Duration::from_secs(5), "{off:?}");
        assert_eq!(time_of("<a/>"), None);
    }

    #[test]
    fn profiles_have_sizes_and_rates() {
        let answer = "<a><Profiles token='p1'><Name>Main</Name><VideoEncoderConfiguration><Encoding>H264</Encoding><Resolution><Width>1920</Width>\
                      <Height>1080</Height></Resolution><RateControl><FrameRateLimit>25</FrameRateLimit></RateControl></VideoEncoderConfiguration>\
                      </Profiles><Profiles token='p2'/><Profiles/></a>";
        let profiles = profiles_of(answer);
        let [(main, stream), (other, bare)] = &*profiles else { panic!("{profiles:?}") };
        assert_eq!((&**main, &*stream.profile, stream.size, stream.rate), ("p1", "Main", Some((1920, 1080)), Some(25)));
        assert_eq!((&**other, &*bare.profile, bare.size), ("p2", "p2", None));
        assert_eq!(profiles_of("no XML"), []);
    }

    #[test]
    fn other_services_than_http_are_refused() {
        let error = streams("https://127.0.0.1/onvif", None, Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("expected an ONVIF service by http://") && !error.is_login(), "{error}");
    }
}
