package gguf

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"dsmoe/config"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// keyReader reads the keys of a file and collects their problems.
type keyReader struct {
	*File
	arch   string
	model  model    // whose config.json is made
	doc    []string // members of config.json
	wrong  []problem.Problem
	absent []string // required keys that are missing
}

// add records a problem of the file.
func (r *keyReader) add(cause string) {
	r.wrong = append(r.wrong, problem.Problem{File: filepath.Base(r.Path()), Cause: cause})
}

func (r *keyReader) fail(key, cause string, args ...any) {
	r.add(problem.Byte(r.values[key].at, "key "+text.Quote(key)+": "+fmt.Sprintf(cause, args...)))
}

// find returns the value of a key of the architecture. An array of equal elements, one per
// layer, is their value.
func (r *keyReader) find(key string) (one any, full string, ok bool) {
	full = r.arch + "." + key
	v, ok := r.values[full]
	if !ok {
		return nil, full, false
	}
	if v.kind != array {
		return v.one, full, true
	}
	if len(v.many) == 0 {
		r.fail(full, "an array of %d elements, where one value is expected, or one per layer", v.n)
		return nil, full, false
	}
	for _, x := range v.many {
		if x != v.many[0] {
			r.fail(full, "differs from layer to layer, which config.json cannot say")
			return nil, full, false
		}
	}
	return v.many[0], full, true
}

// maxNatural is the largest number that a config can have: it fits in an int everywhere.
const maxNatural = math.MaxInt32

// natural returns the whole number that a key has.
func (r *keyReader) natural(key string) (n int, ok bool) {
	one, full, ok := r.find(key)
	if !ok {
		return 0, false
	}
	switch x := one.(type) {
	case uint64:
		if x <= maxNatural {
			return int(x), true
		}
	case int64:
		if 0 <= x && x <= maxNatural {
			return int(x), true
		}
	}
	r.fail(full, "%v is not a whole number from 0 to %d", one, maxNatural)
	return 0, false
}

// need is natural for a required key.
func (r *keyReader) need(key string) int {
	n, ok := r.natural(key)
	if _, present := r.values[r.arch+"."+key]; !present {
		r.absent = append(r.absent, r.arch+"."+key)
	}
	if !ok {
		return 0
	}
	return n
}

// real returns the number that a key has.
func (r *keyReader) real(key string) (x float64, ok bool) {
	one, full, ok := r.find(key)
	if !ok {
		return 0, false
	}
	if x, ok = one.(float64); !ok || math.IsNaN(x) || math.IsInf(x, 0) {
		r.fail(full, "%v is not a number", one)
		return 0, false
	}
	return x, true
}

// put adds a member to config.json, under the key that the model has for a field of DeepSeek's.
func (r *keyReader) put(field, value string) {
	r.doc = append(r.doc, strconv.Quote(config.Defaults(r.model.modelType).Key(field))+": "+value)
}

func (r *keyReader) putInt(field string, n int) { r.put(field, strconv.Itoa(n)) }

// groups takes the groups of experts, and reports whether there are several.
func (r *keyReader) groups() (several bool) {
	groups, _ := r.natural(groupCount)
	used, _ := r.natural(groupUsed)
	if groups <= 1 {
		groups, used = 1, 1
	}
	r.putInt("n_group", groups)
	r.putInt("topk_group", used)
	return groups > 1
}
