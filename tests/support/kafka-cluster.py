"""A Kafka cluster for tests: the mock cluster of librdkafka with one broker and the topic `results`. Prints the broker's address.

Then prints the payload of each message that arrives, one a line, in order. Standard input, one command per line: `down`: the broker
closes its connections and accepts none; `up`: the broker works again; `end`: print the messages that have not been printed, and end. The
process also ends with its standard input.
"""

import ctypes
import os
import sys
import threading

kafka = ctypes.CDLL("librdkafka.so.1")
POINTER = ctypes.c_void_p


class Message(ctypes.Structure):
    """The begin of `rd_kafka_message_t`."""

    _fields_ = [
        ("error", ctypes.c_int),
        ("topic", POINTER),
        ("partition", ctypes.c_int32),
        ("payload", POINTER),
        ("n_bytes", ctypes.c_size_t),
        ("key", POINTER),
        ("n_key_bytes", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
    ]


def function(name, result, *arguments):
    found = getattr(kafka, "rd_kafka_" + name)
    found.restype, found.argtypes = result, arguments
    return found


conf_new = function("conf_new", POINTER)
conf_set = function("conf_set", ctypes.c_int, POINTER, ctypes.c_char_p, ctypes.c_char_p, POINTER, ctypes.c_size_t)
new = function("new", POINTER, ctypes.c_int, POINTER, POINTER, ctypes.c_size_t)
cluster_new = function("mock_cluster_new", POINTER, POINTER, ctypes.c_int)
bootstraps = function("mock_cluster_bootstraps", ctypes.c_char_p, POINTER)
topic_create = function("mock_topic_create", ctypes.c_int, POINTER, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
set_down = function("mock_broker_set_down", ctypes.c_int, POINTER, ctypes.c_int32)
set_up = function("mock_broker_set_up", ctypes.c_int, POINTER, ctypes.c_int32)
topic_new = function("topic_new", POINTER, POINTER, ctypes.c_char_p, POINTER)
consume_start = function("consume_start", ctypes.c_int, POINTER, ctypes.c_int32, ctypes.c_int64)
consume = function("consume", ctypes.POINTER(Message), POINTER, ctypes.c_int32, ctypes.c_int)
message_destroy = function("message_destroy", None, ctypes.POINTER(Message))
watermarks = function("query_watermark_offsets", ctypes.c_int, POINTER, ctypes.c_char_p, ctypes.c_int32, POINTER, POINTER, ctypes.c_int)

PRODUCER, CONSUMER, BEGINNING = 0, 1, -2
TOPIC, PARTITION, BROKER = b"results", 0, 1

cluster = cluster_new(new(PRODUCER, conf_new(), None, 0), 1)
topic_create(cluster, TOPIC, 1, 1)
address = bootstraps(cluster)
conf = conf_new()
for name, value in [("bootstrap.servers", address), ("reconnect.backoff.max.ms", b"500"), ("log_level", b"0")]:
    if conf_set(conf, name if isinstance(name, bytes) else name.encode(), value, None, 0) != 0:
        sys.exit(f"unknown setting {name}")
client = new(CONSUMER, conf, None, 0)
topic = topic_new(client, TOPIC, None)
position = 0
is_ending = threading.Event()


def n_messages():
    low, high = ctypes.c_int64(), ctypes.c_int64(-1)
    watermarks(client, TOPIC, PARTITION, ctypes.byref(low), ctypes.byref(high), 5000)
    return high.value


def print_messages():
    global position
    consume_start(topic, PARTITION, BEGINNING)
    end = None
    while end is None or position < end:
        if is_ending.is_set() and end is None:
            # The number is unknown while the broker is away.
            found = n_messages()
            end = found if found >= 0 else None
            continue
        message = consume(topic, PARTITION, 100)
        if not message:
            continue
        if message.contents.error == 0:
            payload = ctypes.string_at(message.contents.payload, message.contents.n_bytes)
            sys.stdout.buffer.write(payload + b"\n")
            sys.stdout.buffer.flush()
            position = message.contents.offset + 1
        message_destroy(message)
    sys.stdout.buffer.flush()
    os._exit(0)


sys.stdout.buffer.write(address + b"\n")
sys.stdout.buffer.flush()
printing = threading.Thread(target=print_messages)
printing.start()
for line in sys.stdin:
    command = line.strip()
    if command == "down":
        set_down(cluster, BROKER)
    elif command == "up":
        set_up(cluster, BROKER)
    elif command == "end":
        is_ending.set()
        printing.join()
os._exit(0)
