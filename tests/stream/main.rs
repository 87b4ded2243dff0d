//! Tests of the elements in real pipelines, and of the command.

#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "serve")]
mod credentials;
mod handle;
#[cfg(feature = "cli")]
mod hanging;
mod harness;
#[cfg(feature = "cli")]
mod hostile_models;
#[cfg(feature = "cli")]
mod installed;

#[cfg(feature = "cli")]
mod analytics;
#[cfg(feature = "cli")]
mod attach;
mod bad_input;
#[cfg(feature = "cli")]
mod book;
#[cfg(feature = "cli")]
mod brokers;
#[cfg(feature = "cli")]
#[path = "../support/cameras.rs"]
mod cameras;
mod capi;
mod cascade;
mod classify;
mod clips;
#[cfg(feature = "cli")]
mod colors;
mod copies;
#[cfg(feature = "cli")]
mod crops;
mod detect;
#[cfg(feature = "cli")]
mod discover;
#[cfg(feature = "cli")]
#[path = "../chaos/disk.rs"]
mod disk;
#[cfg(feature = "cli")]
mod disks;
mod dlstreamer;
mod documentation;
#[cfg(feature = "cli")]
mod endings;
mod failures;
#[cfg(feature = "cli")]
mod fleet;
mod flow;
#[cfg(feature = "cli")]
mod formats;
#[cfg(feature = "cli")]
mod images;
#[cfg(feature = "cli")]
mod inputs;
#[cfg(feature = "serve")]
mod intake;
#[allow(dead_code, reason = "the runtime tests use the rest")]
#[path = "../support/kserve.rs"]
mod kserve;
#[cfg(feature = "cli")]
mod limits;
mod link;
mod live;
mod meta;
#[cfg(feature = "cli")]
mod models_cli;
mod motion;
#[cfg(feature = "nodes")]
mod nodes;
#[cfg(feature = "nodes")]
mod nodes_cluster;
#[cfg(feature = "nodes")]
mod nodes_faults;
#[cfg(feature = "nodes")]
mod nodes_page;
#[cfg(feature = "nodes")]
mod nodes_sealed;
#[cfg(feature = "cli")]
mod outages;
#[cfg(feature = "cli")]
mod outputs;
mod overlay;
mod pipelines;
#[cfg(feature = "cli")]
mod plausibility;
#[cfg(feature = "serve")]
mod playlist_parts;
#[cfg(feature = "serve")]
mod playlists;
mod policies;
mod publish;
#[cfg(feature = "cli")]
#[path = "../support/random.rs"]
mod random;
#[cfg(feature = "cli")]
mod record;
#[cfg(feature = "cli")]
mod recordings;
mod reference;
#[cfg(feature = "cli")]
mod reference_pages;
#[cfg(feature = "cli")]
mod refusals;
mod remote;
#[cfg(feature = "cli")]
mod restarts;
#[cfg(feature = "cli")]
mod results_schema;
mod reuse;
mod rig;
#[cfg(feature = "cli")]
#[path = "../support/rtsp.rs"]
mod rtsp;
#[cfg(feature = "cli")]
mod run_models;
mod senders;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod serve_canary;
#[cfg(feature = "serve")]
mod serve_change;
#[cfg(feature = "serve")]
mod serve_crops;
#[cfg(feature = "serve")]
mod serve_destinations;
#[cfg(feature = "serve")]
mod serve_limits;
#[cfg(feature = "serve")]
mod serve_models;
#[cfg(feature = "serve")]
mod serve_page;
#[cfg(feature = "serve")]
mod serve_spool;
#[cfg(feature = "serve")]
mod serve_state;
#[cfg(feature = "telemetry")]
mod serve_telemetry;
#[cfg(feature = "serve")]
mod serve_tls;
#[cfg(feature = "serve")]
mod serve_video;
#[cfg(feature = "cli")]
mod service;
#[cfg(feature = "cli")]
mod shapes;
mod shared;
mod sharing;
#[cfg(feature = "nodes")]
#[path = "../support/slow_proxy.rs"]
mod slow_proxy;
mod soak;
#[cfg(feature = "serve")]
mod source;
mod stats;
mod tiles;
#[cfg(feature = "cli")]
mod trace;
mod track;
#[cfg(feature = "cli")]
mod untrusted;
#[cfg(feature = "cli")]
mod upright;
mod warm_up;
