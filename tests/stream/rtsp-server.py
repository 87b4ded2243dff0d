"""An RTSP server for tests: prints its port, then serves until it is killed.

/live is endless, /short ends after 40 frames. Arguments: `private`: they require user:secret;
`password=TEXT`: another password; `port=NUMBER`; `size=WIDTHxHEIGHT`.
"""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

VIDEO = (
    "( videotestsrc is-live=true {} ! video/x-raw,width={},height={},framerate=25/1"
    " ! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=10 ! rtph264pay name=pay0 pt=96 config-interval=1 )"
)

Gst.init(None)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
options = dict((argument.split("=") + [""])[:2] for argument in sys.argv[1:])
server.set_service(options.get("port", "0"))
is_private = "private" in options
width, height = options.get("size", "320x240").split("x")
if is_private:
    token = GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", "user")
    auth = GstRtspServer.RTSPAuth()
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic("user", options.get("password", "secret")), token)
    server.set_auth(auth)

for path, source in [("/live", ""), ("/short", "num-buffers=40")]:
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(VIDEO.format(source, width, height))
    factory.set_shared(True)
    if is_private:
        permissions = GstRtspServer.RTSPPermissions()
        permissions.add_role("user")
        for what in ["media.factory.access", "media.factory.construct"]:
            permissions.add_permission_for_role("user", what, True)
        factory.set_permissions(permissions)
    server.get_mount_points().add_factory(path, factory)
server.attach(None)
print(server.get_bound_port(), flush=True)
GLib.MainLoop().run()
