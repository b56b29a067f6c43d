package gguf

// The keys of a file that is made of GGUF files.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/text"
)

// pairs are encoded keys with their values.
type pairs struct {
	keys []string
	of   map[string][]byte // each key's bytes, its value included
}

// pairsOf takes apart what a keyWriter wrote.
func pairsOf(w *keyWriter) pairs {
	h, data, err := w.header()
	if err != nil {
		panic("gguf: keys that were just written: " + err.Error())
	}
	return pairsIn(h, data)
}

// pairsIn are the pairs of a header whose bytes are data.
func pairsIn(h *Header, data []byte) pairs {
	p := pairs{h.keys, make(map[string][]byte, len(h.keys))}
	for _, key := range h.keys {
		p.of[key] = data[h.values[key].at:h.values[key].end]
	}
	return p
}

// modelPairs are the pairs that come from config.json.
func modelPairs(c *config.Config) pairs {
	w := &keyWriter{b: make([]byte, 8), arch: modelOf(c).arch}
	w.model(c)
	return pairsOf(w)
}

// perFile are keys that describe one file, not the model.
var perFile = []string{alignmentKey, "split.no", "split.count", "split.tensors.count"}

// rekeyed returns the keys of the source's files, byte for byte and in their order, but those that
// the type, the layers or the user change.
func rekeyed(d format.Description) (format.Described, error) {
	if d.Pre != "" || d.NoVocab {
		return format.Described{}, errors.New("the keys are the source's: " +
			"--pre and --no-vocab are for a source with a tokenizer.json")
	}
	f := d.Source[0].(*File)
	var head bytes.Buffer
	if err := f.Identify(&head); err != nil {
		return format.Described{}, err
	}
	source := pairsIn(f.Header, head.Bytes())
	keys, changed := replacedPairs(source, d)
	note := "the keys are the source's"
	if f.values[tokensKey].n > 0 {
		note += ", the tokenizer's too"
	}
	if len(changed) > 0 {
		note += ", but for " + strings.Join(changed, ", ")
	}
	number, _ := f.values[fileTypeKey].one.(uint64)
	if d.Type != "keep" {
		number = uint64(fileType(d))
	}
	stem := stem(d, uint32(number), func(key string) string {
		s, _ := f.values[key].one.(string)
		return s
	})
	vocabulary, err := vocabularyOf(keys, "the source's keys", nil)
	return format.Described{Keys: keys, Stem: stem, Notes: append(warnings(d.Config), note), Vocabulary: vocabulary}, err
}

// replacedPairs puts the pairs of a description in the places of the source's. changed names the keys of
// the source that are not as they were.
func replacedPairs(source pairs, d format.Description) (keys []byte, changed []string) {
	written, removed := editedPairs(d, source)
	w := &keyWriter{b: make([]byte, 8)}
	for _, key := range source.keys {
		pair, edits := written.of[key]
		switch {
		case slices.Contains(perFile, key):
			continue
		case slices.Contains(removed, key):
		case !edits:
			pair = source.of[key]
		}
		w.pair(pair)
		if !bytes.Equal(pair, source.of[key]) {
			changed = append(changed, text.Quote(key))
		}
	}
	for _, key := range written.keys {
		if source.of[key] == nil {
			w.pair(written.of[key])
		}
	}
	return w.b, changed
}

// pair adds an encoded pair, unless it is nil.
func (w *keyWriter) pair(b []byte) {
	if b == nil {
		return
	}
	binary.LittleEndian.PutUint64(w.b, binary.LittleEndian.Uint64(w.b)+1)
	w.b = append(w.b, b...)
}

// editedPairs returns the pairs that replace pairs of the source or are added, and the keys that are removed.
func editedPairs(d format.Description, source pairs) (written pairs, removed []string) {
	w := &keyWriter{b: make([]byte, 8)}
	before, after := modelPairs(d.Before), modelPairs(d.Config)
	if split := modelOf(d.Config).arch + "." + keyMLA; after.of[split] != nil && source.of[split] == nil {
		before = pairs{} // the source has kv_b in one piece: the keys of the model have another layout
	}
	for _, key := range after.keys {
		if !bytes.Equal(before.of[key], after.of[key]) {
			w.pair(after.of[key])
		}
	}
	for _, key := range before.keys {
		if after.of[key] == nil {
			removed = append(removed, key)
		}
	}
	if binary.LittleEndian.Uint64(w.b) > 0 && source.of[sizeKey] != nil {
		w.put(sizeKey, sizeLabel(d.Tensors))
	}
	if d.Named != "" {
		w.put(nameKey, d.Named)
	}
	if d.Type != "keep" {
		w.put(fileTypeKey, fileType(d))
		w.put(quantisationKey, quantisationVersion)
		w.importanceKeys(d.Imatrix)
	}
	return pairsOf(w), removed
}
