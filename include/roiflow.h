/*
 * roiflow.h - reads and changes the results of roiflow's GStreamer elements on a buffer.
 *

 * The functions are in the plugin, libgstroiflow. Its pkg-config name is `roiflow`:
 *
 *     cc program.c $(pkg-config --cflags --libs roiflow)
 *
 * GStreamer and the program then use the same library. A program that cannot link, such as a Python program, loads the plugin file that
 * GStreamer has loaded: gst_plugin_get_filename() of the plugin "roiflow". See examples/c and examples/python.
 *
 * ABI: while ROIFLOW_ABI_VERSION stays the same, functions are only added, and structs keep their layout. A program must compare it with
 * roiflow_abi_version() before it calls any other function.
 *
 * Threads: results are immutable, so several threads may use the same results at once. While results are read from a buffer or changed, no
 * other thread may change the buffer or its metas.
 *
 * Ownership: the caller must free the results of roiflow_results_from_buffer(). They are a copy, and do not depend on the buffer.
 * Strings belong to the results: they are UTF-8, NUL-terminated, and valid until the results are freed.
 *
 * Errors: a function reports failure only by the return value that its comment names. NULL is allowed for every pointer.
 */
#ifndef ROIFLOW_H
#define ROIFLOW_H

#include <stddef.h>
#include <stdint.h>

#include <gst/gst.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ABI version of this header. */
#define ROIFLOW_ABI_VERSION 1

/* All results of one frame. */
typedef struct RoiflowResults RoiflowResults;

/* A detected object. */
typedef struct RoiflowObject {
  /* Box in pixels of the frame, with subpixel precision. It may extend outside the frame. */
  float x, y, width, height;
  /* Confidence, 0 to 1; NaN if the object was attached without a confidence. */
  float confidence;
  /* Index of the class. */
  uint32_t label_id;
  /* Label of the class; NULL if it has none. */
  const char *label;
  /* Track ID, from 1, constant over frames; 0 without a tracker, and until the tracker assigns one. */
  int32_t track_id;
  /* Index of the object in whose region this one was detected; -1 if there is none. */
  int32_t parent;
  /* Number of attributes: results of classifiers. */
  size_t n_attributes;
} RoiflowObject;

/* Kinds of attributes. */
typedef enum RoiflowAttributeKind {
  /* A result without a field in this struct, such as an embedding: see roiflow_results_json(). Kinds may be added. */
  ROIFLOW_ATTRIBUTE_OTHER = 0,
  /* A label with its confidence. If a classifier gives several, the most confident one. */
  ROIFLOW_ATTRIBUTE_LABEL = 1,
  /* A number, such as an age in years. */
  ROIFLOW_ATTRIBUTE_VALUE = 2
} RoiflowAttributeKind;

/* An attribute of an object. */
typedef struct RoiflowAttribute {
  /* Name of the attribute, such as "gender". */
  const char *name;
  /* Name of the model. */
  const char *model;
  /* The label; NULL for other kinds, and for a class without a label. */
  const char *label;
  /* A RoiflowAttributeKind. */
  int32_t kind;
  /* For a label: index of the class, and confidence from 0 to 1. Otherwise 0. */
  uint32_t label_id;
  float confidence;
  /* For a value: the number. Otherwise 0. */
  float value;
} RoiflowAttribute;

/* Returns the ABI version of the loaded library. */
uint32_t roiflow_abi_version (void);

/*
 * Reads the results of a buffer: those of roiflow's elements, and of other elements that write GstVideoRegionOfInterestMeta or
 * GstAnalyticsRelationMeta.
 *
 * `width` and `height` are the frame size in the buffer's caps. If both are 0, the size is taken from the GstVideoMeta, or else from
 * the time when the results were attached.
 *
 * Returns results that the caller must free with roiflow_results_free(), or NULL if the buffer has none.
 */
RoiflowResults *roiflow_results_from_buffer (GstBuffer *buffer, uint32_t width, uint32_t height);

/* Frees results. */
void roiflow_results_free (RoiflowResults *results);

/* Returns the number of objects. Objects entirely outside the frame are left out. */
size_t roiflow_results_n_objects (const RoiflowResults *results);

/* Writes an object to `*object`. Returns 1, or 0 if the index is out of range; `*object` is then unchanged. */
int roiflow_results_get_object (const RoiflowResults *results, size_t object_idx, RoiflowObject *object);

/* Writes an attribute of an object to `*attribute`. Returns 1, or 0 if an index is out of range; `*attribute` is then unchanged. */
int roiflow_results_get_attribute (const RoiflowResults *results, size_t object_idx, size_t attribute_idx,
                                   RoiflowAttribute *attribute);

/*
 * Returns all results as one line of JSON, as roipublish writes it, with "objects" in the order of the functions above. "stream" and
 * "timestamp" are null, because only an element knows them. Returns NULL only if `results` is NULL.
 */
const char *roiflow_results_json (const RoiflowResults *results);

/*
 * Makes the buffer of a pad probe writable, and returns it. It belongs to the probe, as before. Returns NULL if the probe has no buffer.
 * A program that calls gst_buffer_make_writable() itself does not need this function.
 */
GstBuffer *roiflow_probe_buffer (GstPadProbeInfo *info);

/*
 * The following functions change the results of a buffer, usually in a pad probe. Elements downstream see the change. `width` and `height`
 * are as for roiflow_results_from_buffer(), and so are the indices of objects: they count the objects that are on the buffer now. Results
 * that were read before do not change.
 *
 * The functions fail if the buffer is not writable.
 */

/*
 * Removes an object, also an object of another element. The indices of later objects become smaller by 1. Removing the
 * GstVideoRegionOfInterestMeta of an object has the same effect. Returns 1, or 0 if the index is out of range.
 */
int roiflow_buffer_remove_object (GstBuffer *buffer, uint32_t width, uint32_t height, size_t object_idx);

/*
 * Adds an object with the values of `*object`, except `n_attributes`. Writes its index to `*object_idx`, unless it is NULL. Returns 1, or
 * 0 if the box has no pixel in the frame or `parent` is the index of no object; use -1 for an object without a parent.
 */
int roiflow_buffer_add_object (GstBuffer *buffer, uint32_t width, uint32_t height, const RoiflowObject *object,
                               size_t *object_idx);

/*
 * Adds an attribute to an object. If `model` is NULL, it is "application". Returns 1, or 0 if the index is out of range, `name` is NULL,
 * or `kind` is neither ROIFLOW_ATTRIBUTE_LABEL nor ROIFLOW_ATTRIBUTE_VALUE.
 */
int roiflow_buffer_add_attribute (GstBuffer *buffer, uint32_t width, uint32_t height, size_t object_idx,
                                  const RoiflowAttribute *attribute);

#ifdef __cplusplus
}
#endif

#endif /* ROIFLOW_H */
