/*
 * Prints the results of roiflow's elements for the frames of a pipeline.
 *
 *     cc results.c -o results $(pkg-config --cflags --libs roiflow)
 *     ./results 'videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=320,height=240 !
 *                roidetect model=faces.onnx ! fakesink name=sink'
 *
 * Results are read at the sink pad of the element named `sink`. roiflow.h documents ownership.
 */
#include <stdio.h>

#include <gst/gst.h>
#include <roiflow.h>

static void
print_attribute (const RoiflowAttribute * attribute)
{
  switch (attribute->kind) {
    case ROIFLOW_ATTRIBUTE_LABEL:
      printf (" %s=%s (%.2f)", attribute->name, attribute->label ? attribute->label : "?", attribute->confidence);
      break;
    case ROIFLOW_ATTRIBUTE_VALUE:
      printf (" %s=%g", attribute->name, attribute->value);
      break;
    default:
      printf (" %s", attribute->name);
  }
}

static void
print_results (GstBuffer * buffer, guint width, guint height)
{
  RoiflowObject object;
  RoiflowAttribute attribute;
  RoiflowResults *results = roiflow_results_from_buffer (buffer, width, height);

  for (size_t n = 0; roiflow_results_get_object (results, n, &object); n++) {
    printf ("%s %.2f at %g,%g %gx%g", object.label ? object.label : "object", object.confidence, object.x, object.y,
        object.width, object.height);
    if (object.track_id > 0)
      printf (" id=%d", object.track_id);
    for (size_t m = 0; roiflow_results_get_attribute (results, n, m, &attribute); m++)
      print_attribute (&attribute);
    printf ("\n");
  }
  if (results)
    printf ("%s\n", roiflow_results_json (results));
  roiflow_results_free (results);
}

static GstPadProbeReturn
on_buffer (GstPad * pad, GstPadProbeInfo * info, gpointer user_data)
{
  GstCaps *caps = gst_pad_get_current_caps (pad);
  gint width = 0, height = 0;

  (void) user_data;
  if (caps) {
    gst_structure_get_int (gst_caps_get_structure (caps, 0), "width", &width);
    gst_structure_get_int (gst_caps_get_structure (caps, 0), "height", &height);
    gst_caps_unref (caps);
  }
  print_results (GST_PAD_PROBE_INFO_BUFFER (info), width, height);
  return GST_PAD_PROBE_OK;
}


/* Plays the pipeline to its end; returns 0 if there was no error. */
static int
play (GstElement * pipeline)
{
  GstBus *bus = gst_element_get_bus (pipeline);
  GstMessage *message;
  int status = 0;

  gst_element_set_state (pipeline, GST_STATE_PLAYING);
  message = gst_bus_timed_pop_filtered (bus, GST_CLOCK_TIME_NONE, GST_MESSAGE_EOS | GST_MESSAGE_ERROR);
  if (GST_MESSAGE_TYPE (message) == GST_MESSAGE_ERROR) {
    GError *error = NULL;

    gst_message_parse_error (message, &error, NULL);
    fprintf (stderr, "%s\n", error->message);
    g_error_free (error);
    status = 1;
  }
  gst_message_unref (message);
  gst_object_unref (bus);
  gst_element_set_state (pipeline, GST_STATE_NULL);
  return status;
}

int
main (int argc, char **argv)
{
  GError *error = NULL;
  GstElement *pipeline, *sink;
  GstPad *pad;
  int status;

  gst_init (&argc, &argv);
  if (argc != 2) {
    fprintf (stderr, "usage: %s PIPELINE\n", argv[0]);
    return 2;
  }
  if (roiflow_abi_version () != ROIFLOW_ABI_VERSION) {
    fprintf (stderr, "roiflow has ABI version %u, expected %u: recompile this program\n", roiflow_abi_version (),
        ROIFLOW_ABI_VERSION);
    return 1;
  }
  pipeline = gst_parse_launch (argv[1], &error);
  if (error) {
    fprintf (stderr, "%s\n", error->message);
    return 1;
  }
  sink = GST_IS_BIN (pipeline) ? gst_bin_get_by_name (GST_BIN (pipeline), "sink") : NULL;
  pad = sink ? gst_element_get_static_pad (sink, "sink") : NULL;
  if (!pad) {
    fprintf (stderr, "expected an element named `sink` with a sink pad in the pipeline\n");
    return 1;
  }
  gst_pad_add_probe (pad, GST_PAD_PROBE_TYPE_BUFFER, on_buffer, NULL, NULL);
  status = play (pipeline);
  gst_object_unref (pad);
  gst_object_unref (sink);
  gst_object_unref (pipeline);
  return status;
}
