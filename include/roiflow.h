/*
 * roiflow.h - the results of roiflow's GStreamer elements, read from a buffer.
 *
 * The functions are in the plugin, libgstroiflow. pkg-config knows it as `roiflow`:
 *
 *     cc program.c $(pkg-config --cflags --libs roiflow)
 *
 * GStreamer and the program then use one and the same library. A program without a linker, as in Python, opens the file of the plugin
 * that GStreamer has loaded: gst_plugin_get_filename() of the plugin "roiflow". examples/c and examples/python show both.
 *
 * ABI: functions are only added, and structs keep their layout, as long as ROIFLOW_ABI_VERSION stays the same. A program compares it
 * with roiflow_abi_version() before it calls anything else.
 *
 * Threads: results never change after they were read, so any number of threads may use the same ones at once. While they are read, no
 * other thread may change the buffer, as for any of its metas.
 *
 * Ownership: roiflow_results_from_buffer() gives the caller results to free. They are a copy, and do not depend on the buffer. All text
 * belongs to the results: it is UTF-8, ends with a NUL and is valid until they are freed.
 *
 * Errors: a function reports failure by the value that its comment names, and in no other way. NULL is allowed for every pointer.
 */
#ifndef ROIFLOW_H
#define ROIFLOW_H

#include <stddef.h>
#include <stdint.h>

#include <gst/gst.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the functions and structs in this header. */
#define ROIFLOW_ABI_VERSION 1

/* All results of one frame. */
typedef struct RoiflowResults RoiflowResults;

/* An object that was found in the frame. */
typedef struct RoiflowObject {
  /* Where, in pixels of the frame. Fractions are kept, and the box may reach outside the frame. */
  float x, y, width, height;
  /* 0 to 1. */
  float confidence;
  /* The index of the class that the model gave. */
  uint32_t label_id;
  /* The name of the class; NULL without one. */
  const char *label;
  /* The same in every frame, from 1; 0 without a tracker, and until the tracker gives one. */
  int32_t track_id;
  /* The index of the object in which this one was found; -1 if there is none. */
  int32_t parent;
  /* How many attributes the object has: what was classified or measured of it. */
  size_t n_attributes;
} RoiflowObject;

/* What an attribute holds. */
typedef enum RoiflowAttributeKind {
  /* Something that this struct has no field for, such as an embedding: see roiflow_results_json(). Kinds may be added. */
  ROIFLOW_ATTRIBUTE_OTHER = 0,
  /* A label with its confidence. Where a classifier gives several, the surest. */
  ROIFLOW_ATTRIBUTE_LABEL = 1,
  /* A number, such as an age in years. */
  ROIFLOW_ATTRIBUTE_VALUE = 2
} RoiflowAttributeKind;

/* An attribute of an object. */
typedef struct RoiflowAttribute {
  /* What was classified or measured, such as "gender". */
  const char *name;
  /* The model that did it. */
  const char *model;
  /* The label; NULL if the kind is another one, or the label has no name. */
  const char *label;
  /* One of RoiflowAttributeKind. */
  int32_t kind;
  /* Of a label: its index, and its confidence from 0 to 1. Otherwise 0. */
  uint32_t label_id;
  float confidence;
  /* Of a value: the number. Otherwise 0. */
  float value;
} RoiflowAttribute;

/* The ABI version of the library that is loaded. */
uint32_t roiflow_abi_version (void);

/*
 * Reads the results of a buffer, from roiflow's elements and from others that write GstVideoRegionOfInterestMeta or
 * GstAnalyticsRelationMeta.
 *
 * `width` and `height` are those of the frame, as the caps of the buffer say. 0 and 0 stand for those of its GstVideoMeta, or else for those
 * that the frame had when the results were attached.
 *
 * Returns results for the caller to free with roiflow_results_free(); NULL if the buffer has none.
 */
RoiflowResults *roiflow_results_from_buffer (GstBuffer *buffer, uint32_t width, uint32_t height);

/* Frees results. */
void roiflow_results_free (RoiflowResults *results);

/* How many objects there are. Objects without a pixel in the frame are left out. */
size_t roiflow_results_n_objects (const RoiflowResults *results);

/* Writes one of the objects to `*object`. Returns 1, or 0 if there is no such object; `*object` is then left as it was. */
int roiflow_results_get_object (const RoiflowResults *results, size_t object_idx, RoiflowObject *object);

/* Writes one of the attributes of an object to `*attribute`. Returns 1, or 0 if there is none; `*attribute` is then left as it was. */
int roiflow_results_get_attribute (const RoiflowResults *results, size_t object_idx, size_t attribute_idx,
                                   RoiflowAttribute *attribute);

/*
 * All results as JSON, in one line: what roipublish writes for the frame, with "objects" in the order of the functions above. What only an element
 * knows, "stream" and "timestamp", is null. Returns NULL for NULL alone.
 */
const char *roiflow_results_json (const RoiflowResults *results);

#ifdef __cplusplus
}
#endif

#endif /* ROIFLOW_H */
