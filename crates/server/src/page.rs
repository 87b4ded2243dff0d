//! The page for browsers: files that are part of the program. The folder `page` has them, and `page/vendor/README.md` the libraries.

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::Error;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Path, content type and content of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../page/index.html")),
    ("/page/style.css", STYLE, include_str!("../page/style.css")),
    ("/page/app.js", SCRIPT, include_str!("../page/app.js")),
    ("/page/api.js", SCRIPT, include_str!("../page/api.js")),
    ("/page/crops.js", SCRIPT, include_str!("../page/crops.js")),
    ("/page/nodes.js", SCRIPT, include_str!("../page/nodes.js")),
    ("/page/stream.js", SCRIPT, include_str!("../page/stream.js")),
    ("/page/video.js", SCRIPT, include_str!("../page/video.js")),
    ("/page/zones.js", SCRIPT, include_str!("../page/zones.js")),
    ("/page/vendor/preact.mjs", SCRIPT, include_str!("../page/vendor/preact.mjs")),
    ("/page/vendor/hooks.mjs", SCRIPT, include_str!("../page/vendor/hooks.mjs")),
    ("/page/vendor/htm.mjs", SCRIPT, include_str!("../page/vendor/htm.mjs")),
    ("/page/vendor/uPlot.esm.js", SCRIPT, include_str!("../page/vendor/uPlot.esm.js")),
    ("/page/vendor/uPlot.min.css", STYLE, include_str!("../page/vendor/uPlot.min.css")),
];

/// What the page may load: files of this server, and the import map in `index.html`, by its hash.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; script-src 'self' 'sha256-AhAGmWcZLsn7iCKd/5K8u1vAzcPyihN2iLfdAgTfi/8='; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; media-src 'self' blob:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Returns a file of the page, or an error for other addresses.
pub(crate) async fn file(request: Request) -> Response {
    let path = request.uri().path();
    let Some((_, kind, content)) = FILES.iter().find(|(known, _, _)| *known == path) else {
        let advice = "`GET /api/openapi.json` lists the routes";
        let shown: String = path.chars().take(100).collect();
        return Error::value("unknown_path", "address", "one of this server", format!("`{shown}`"), advice)
            .with_status(404)
            .into_response();
    };
    (StatusCode::OK, [(header::CONTENT_TYPE, *kind), (header::CACHE_CONTROL, "no-cache")], *content).into_response()
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use ring::digest::{SHA256, digest};

    use super::*;

    fn content(path: &str) -> &'static str {
        FILES.iter().find(|(known, _, _)| *known == path).unwrap_or_else(|| panic!("{path} is missing")).2
    }

    #[test]
    fn import_map_is_allowed_by_its_hash() {
        let map = content("/").split_once("<script type=\"importmap\">").unwrap().1.split("</script>").next().unwrap();
        let hash = format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, map.as_bytes())));
        assert!(CONTENT_SECURITY_POLICY.contains(&hash), "expected {hash} in the policy");
        let imports: serde_json::Value = serde_json::from_str(map).unwrap();
        for path in imports["imports"].as_object().unwrap().values() {
            assert!(!content(path.as_str().unwrap()).is_empty());
        }
    }

    #[test]
    fn libraries_are_those_of_the_list() {
        let list = include_str!("../page/vendor/README.md");
        let mut n_files = 0;
        for (path, _, content) in FILES.iter().filter(|(path, _, _)| path.starts_with("/page/vendor/")) {
            let hash: String = digest(&SHA256, content.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            let line = format!("{hash}  {}", path.rsplit('/').next().unwrap());
            assert!(list.contains(&line), "expected `{line}` in page/vendor/README.md");
            n_files += 1;
        }
        assert_eq!(n_files, 5);
    }

    #[test]
    fn page_loads_nothing_from_elsewhere() {
        for (path, _, content) in FILES.iter().filter(|(path, _, _)| !path.starts_with("/page/vendor/")) {
            assert!(!content.contains("http://") && !content.contains("https://"), "{path}");
        }
    }
}
