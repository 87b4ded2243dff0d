"""An RTSP server for tests: prints its port, then serves until it is killed, or until its standard input ends.

/live is endless, /short ends after 40 frames. Arguments: `private`: they require user:secret;
`password=TEXT`: another password; `port=NUMBER`; `size=WIDTHxHEIGHT`; `rate=NUMBER`, frames per second;
`codec=h264`, `h265`, `vp8` or `jpeg`.

Standard input, one command per line: `stall`: keep the connections, and send nothing; `slow MILLISECONDS`: take this
long for each frame; `size WIDTHxHEIGHT`: send another size to the connected clients; `go`: end of `stall` and `slow`.
"""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

CODECS = {
    "h264": "x264enc tune=zerolatency speed-preset=ultrafast key-int-max=10 ! rtph264pay name=pay0 pt=96 config-interval=1",
    "h265": "x265enc tune=zerolatency speed-preset=ultrafast key-int-max=10 ! rtph265pay name=pay0 pt=96 config-interval=1",
    "vp8": "vp8enc deadline=1 keyframe-max-dist=10 ! rtpvp8pay name=pay0 pt=96",
    "jpeg": "jpegenc ! rtpjpegpay name=pay0 pt=26",
}
VIDEO = "( videotestsrc is-live=true {} ! capsfilter name=caps caps={} ! identity name=slow ! valve name=valve ! {} )"

Gst.init(None)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
options = dict((argument.split("=") + [""])[:2] for argument in sys.argv[1:])
server.set_service(options.get("port", "0"))
is_private = "private" in options
medias = []
state = {"stall": False, "slow": 0, "size": options.get("size", "320x240")}


def caps_of_video():
    width, height = state["size"].split("x")
    return f"video/x-raw,format=I420,width={width},height={height},framerate={options.get('rate', '25')}/1"


def apply(media):
    bin = media.get_element()
    bin.get_by_name("slow").set_property("sleep-time", state["slow"] * 1000)
    bin.get_by_name("valve").set_property("drop", state["stall"])
    bin.get_by_name("caps").set_property("caps", Gst.Caps.from_string(caps_of_video()))


def configure(_factory, media):
    medias.append(media)
    media.connect("unprepared", lambda gone: medias.remove(gone) if gone in medias else None)
    apply(media)


def command(channel, _condition):
    line = channel.readline()
    if not line:
        sys.exit(0)
    words = line.split()
    if words[:1] == ["go"]:
        state.update(stall=False, slow=0)
    elif words[:1] == ["stall"]:
        state["stall"] = True
    elif words[:1] == ["slow"]:
        state["slow"] = int(words[1])
    elif words[:1] == ["size"]:
        state["size"] = words[1]
    for media in list(medias):
        apply(media)
    return True


if is_private:
    token = GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", "user")
    auth = GstRtspServer.RTSPAuth()
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic("user", options.get("password", "secret")), token)
    server.set_auth(auth)

for path, source in [("/live", ""), ("/short", "num-buffers=40")]:
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(VIDEO.format(source, caps_of_video(), CODECS[options.get("codec", "h264")]))
    factory.set_shared(True)
    factory.connect("media-configure", configure)
    if is_private:
        permissions = GstRtspServer.RTSPPermissions()
        permissions.add_role("user")
        for what in ["media.factory.access", "media.factory.construct"]:
            permissions.add_permission_for_role("user", what, True)
        factory.set_permissions(permissions)
    server.get_mount_points().add_factory(path, factory)
if not server.attach(None):
    sys.exit(f"port {options.get('port')} is in use")
print(server.get_bound_port(), flush=True)
GLib.io_add_watch(sys.stdin, GLib.PRIORITY_DEFAULT, GLib.IO_IN | GLib.IO_HUP, command)
GLib.MainLoop().run()
