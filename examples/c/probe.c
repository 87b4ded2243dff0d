/*
 * Removes objects by a rule in a pad probe: elements downstream of the element `filter` do not see small objects.
 *
 *     cc probe.c -o probe $(pkg-config --cflags --libs roiflow)
 *     ./probe 'videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=320,height=240 !
 *              roidetect model=faces.onnx name=filter ! roipublish ! fakesink' 80
 *
 * The last argument is the smallest height of an object in pixels.
 */
#include <stdio.h>
#include <stdlib.h>

#include <gst/gst.h>
#include <roiflow.h>

static GstPadProbeReturn
on_buffer (GstPad * pad, GstPadProbeInfo * info, gpointer user_data)
{
  const double *min_height = user_data;
  GstBuffer *buffer = roiflow_probe_buffer (info);
  GstCaps *caps = gst_pad_get_current_caps (pad);
  gint width = 0, height = 0;
  RoiflowResults *results;
  RoiflowObject object;

  if (caps) {
    gst_structure_get_int (gst_caps_get_structure (caps, 0), "width", &width);
    gst_structure_get_int (gst_caps_get_structure (caps, 0), "height", &height);
    gst_caps_unref (caps);
  }
  results = roiflow_results_from_buffer (buffer, width, height);
  /* The last object first, because the indices of later objects change. */
  for (size_t n = roiflow_results_n_objects (results); n-- > 0;) {
    if (roiflow_results_get_object (results, n, &object) && object.height < *min_height)
      roiflow_buffer_remove_object (buffer, width, height, n);
  }
  roiflow_results_free (results);
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
  GstElement *pipeline, *filter;
  GstPad *pad;
  double min_height;
  int status;

  gst_init (&argc, &argv);
  if (argc != 3) {
    fprintf (stderr, "usage: %s PIPELINE MIN_HEIGHT\n", argv[0]);
    return 2;
  }
  if (roiflow_abi_version () != ROIFLOW_ABI_VERSION) {
    fprintf (stderr, "roiflow has ABI version %u, expected %u: recompile this program\n", roiflow_abi_version (),
        ROIFLOW_ABI_VERSION);
    return 1;
  }
  min_height = atof (argv[2]);
  pipeline = gst_parse_launch (argv[1], &error);
  if (error) {
    fprintf (stderr, "%s\n", error->message);
    return 1;
  }
  filter = GST_IS_BIN (pipeline) ? gst_bin_get_by_name (GST_BIN (pipeline), "filter") : NULL;
  pad = filter ? gst_element_get_static_pad (filter, "src") : NULL;
  if (!pad) {
    fprintf (stderr, "expected an element named `filter` with a source pad in the pipeline\n");
    return 1;
  }
  gst_pad_add_probe (pad, GST_PAD_PROBE_TYPE_BUFFER, on_buffer, &min_height, NULL);
  status = play (pipeline);
  gst_object_unref (pad);
  gst_object_unref (filter);
  gst_object_unref (pipeline);
  return status;
}
