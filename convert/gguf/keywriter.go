package gguf

// Encoding keys.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"

	"dsmoe/config"
)

// keyWriter encodes keys.
type keyWriter struct {
	b     []byte // Described.Keys: the number of keys, then each with its value
	arch  string
	texts map[string]string // the values that are strings; nil where nobody reads them
}

// key begins a pair.
func (w *keyWriter) key(key string, k kind) {
	binary.LittleEndian.PutUint64(w.b, binary.LittleEndian.Uint64(w.b)+1)
	w.b = binary.LittleEndian.AppendUint32(appendText(w.b, key), uint32(k))
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// kindOf has the kinds of the values that put takes, and of elements of lists.
var kindOf = map[reflect.Kind]kind{reflect.Uint32: u32, reflect.Int32: i32, reflect.Float32: f32, reflect.Bool: boolean,
	reflect.String: str}

// put writes a pair: a uint32, int32, float32, bool, string, []string, []int32, []float32 or []bool.
func (w *keyWriter) put(key string, v any) {
	t := reflect.TypeOf(v)
	list := t.Kind() == reflect.Slice
	if list {
		t = t.Elem()
	}
	switch k, known := kindOf[t.Kind()]; {
	case !known:
		panic(fmt.Sprintf("gguf: key %s: no type for %T", key, v))
	case list:
		w.key(key, array)
		w.b = binary.LittleEndian.AppendUint32(w.b, uint32(k))
		w.b = binary.LittleEndian.AppendUint64(w.b, uint64(reflect.ValueOf(v).Len()))
	default:
		w.key(key, k)
	}
	switch v := v.(type) {
	case string:
		w.b = appendText(w.b, v)
		if w.texts != nil {
			w.texts[key] = v
		}
	case []string:
		for _, s := range v {
			w.b = appendText(w.b, s)
		}
	default:
		w.b, _ = binary.Append(w.b, binary.LittleEndian, v) // these types give no error
	}
}

// of writes a key behind the architecture's name.
func (w *keyWriter) of(key string, v any) { w.put(w.arch+"."+key, v) }

// putSome writes a text or a list that is not empty.
func (w *keyWriter) putSome(key string, v any) {
	if reflect.ValueOf(v).Len() > 0 {
		w.put(key, v)
	}
}

// header reads the keys as a file's reader does; data is the header that they are read from.
func (w *keyWriter) header() (h *Header, data []byte, err error) {
	const tensors = 8
	data = append(binary.LittleEndian.AppendUint32([]byte(magic), 3), make([]byte, tensors)...)
	data = append(data, w.b...)
	h, err = readHeader(bytes.NewReader(data), int64(len(data)), "model.gguf")
	return h, data, err
}

// yarn writes the scaling of later models; s may be nil.
func (w *keyWriter) yarn(s *config.RopeScaling) {
	if s == nil {
		return
	}
	w.of(scalingType, s.Type)
	w.of(scalingFactor, float32(s.Factor))
	w.of(scalingContext, uint32(s.OriginalMaxPositionEmbeddings))
	w.of(yarnFast, float32(s.BetaFast))
	w.of(yarnSlow, float32(s.BetaSlow))
	if !slices.Contains(latents, w.arch) {
		return
	}
	w.of(yarnLog, float32(0.1*s.MScaleAllDim))
}

// groups writes the groups of experts: 1 if experts are chosen from all groups.
func (w *keyWriter) groups(c *config.Config) {
	switch {
	case limited(c):
		w.of(groupCount, uint32(c.Router.NGroup))
		w.of(groupUsed, uint32(c.Router.TopKGroup))
	case c.Router.NGroup == 1 && c.Router.TopKGroup == 1:
		w.of(groupCount, uint32(1))
		w.of(groupUsed, uint32(1))
	}
}
