package checkpoint

// What is compared of two adapters.

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/source"
	"dsmoe/model/weights"
)

// IsAdapterAlone reports whether the directory at path holds an adapter, and no weights of a model.
func IsAdapterAlone(path string) bool {
	if IsRemote(path) {
		return false
	}
	dir, err := Snapshot(path)
	if err != nil {
		return false
	}
	names, err := readDir(source.Disk(dir))
	l := location{dir: source.Disk(dir)}
	return err == nil && slices.ContainsFunc(names, IsAdapter) &&
		!slices.ContainsFunc(formats, func(f *format.Format) bool { return l.find(f, names) })
}

// Weights lists the tensors in the order of the file, without places in a model. A tensor's name lacks the prefix of peft
// and the adapter's name, unless another tensor has the shorter name already.
func (a *Adapter) Weights() (list []*weights.Weight) {
	taken := map[string]bool{}
	for info := range a.Tensors() {
		stored := info.Name
		if name := plainName(stored); !taken[name] {
			info.Name = name
		}
		taken[info.Name] = true
		list = append(list, &weights.Weight{Info: info, Stored: stored})
	}
	return list
}

// plainName is the name that peft 0.21 saves a tensor with, without its prefix.
func plainName(stored string) string {
	name := strings.TrimPrefix(stored, prefix)
	if m := factorName.FindStringSubmatch(name); m != nil {
		return m[1] + ".lora_" + m[2] + m[3] + strings.Replace(m[4], ".default", "", 1)
	}
	return wholeName(name)
}

// ReadAt fills dst with the named tensor's bytes from offset on.
func (a *Adapter) ReadAt(name string, dst []byte, offset int64) error {
	return readFull(a.file, dst, a.Place(name)+offset)
}

// Differences compares the configs of two adapters, and what the products of each module are multiplied with. A key that
// shows in these scales, selects the same modules, or says how an adapter was trained, has no meaning.
func (a *Adapter) Differences(b *Adapter) []config.Difference {
	list := []config.Difference{}
	scales, known := a.scaleDifferences(b)
	for _, key := range slices.Sorted(maps.Keys(a.keys)) {
		list = append(list, config.Difference{Key: key, A: a.keys[key], B: b.keys[key]})
	}
	for _, key := range slices.Sorted(maps.Keys(b.keys)) {
		if _, both := a.keys[key]; !both {
			list = append(list, config.Difference{Key: key, B: b.keys[key]})
		}
	}
	list = slices.DeleteFunc(list, func(d config.Difference) bool { return bytes.Equal(plainValue(d.A), plainValue(d.B)) })
	for i := range list {
		d := &list[i]
		for _, v := range []*jsontext.Value{&d.A, &d.B} {
			if *v == nil {
				*v = jsontext.Value("null")
			}
		}
		switch d.Meaning = !slices.Contains(idle, d.Key); d.Key {
		case "base_model_name_or_path", "modules_to_save": // peft loads whole tensors by their names
			d.Meaning = false
		case "target_modules", "target_parameters", "exclude_modules", "layers_to_transform":
			d.Meaning = a.selectOtherwise(b)
		case "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern":
			d.Meaning = !known
		case "init_lora_weights":
			d.Meaning = changesBase(d.A) || changesBase(d.B)
		case "peft_version": // it decides the order of the factors of fused experts
			d.Meaning = a.Since(19) != b.Since(19) && len(a.Parameters.Names) > 0
		}
	}
	return append(list, scales...)
}

// selectOtherwise reports whether a module that one of the adapters changes is selected by one of their configs alone, or
// may be: peft leaves out what the config does not select.
func (a *Adapter) selectOtherwise(b *Adapter) bool {
	for _, s := range []selector{a.Modules, a.Excluded, b.Modules, b.Excluded} {
		if s.Unread {
			return true
		}
	}
	return slices.ContainsFunc(slices.Concat(a.Changes, b.Changes), func(c *Change) bool {
		return c.Whole == nil && a.selects(c.Module) != b.selects(c.Module)
	})
}

// layerOf matches a module of a decoder layer.
var layerOf = regexp.MustCompile(`\blayers\.(\d+)\.`)

// selects reports whether the config selects a module, or a parameter of fused experts.
func (l *lora) selects(module string) bool {
	module = wholeName(module)
	for _, parameter := range []string{".weight", ".gate_up_proj", ".down_proj"} {
		if l.Parameters.Selects(module + parameter) {
			return true
		}
	}
	layer := append(layerOf.FindStringSubmatch(module), "", "")[1]
	return l.SelectsModule(module, layer)
}

// plainValue is a value of adapter_config.json by its meaning: nothing for no value, and lists of names in one order.
func plainValue(v jsontext.Value) []byte {
	if unset(v) {
		return nil
	}
	var names []string
	if json.Unmarshal(v, &names) == nil {
		slices.Sort(names)
		v, _ = json.Marshal(names)
		return v
	}
	v = v.Clone()
	v.Canonicalize()
	return v
}

// scaleDifferences lists the modules whose products the adapters multiply with different factors, those whose names
// differ in numbers together. known is false if a config does not tell all factors.
func (a *Adapter) scaleDifferences(b *Adapter) (list []config.Difference, known bool) {
	type pair struct {
		module string // with {} for numbers
		a, b   float64
	}
	others, modules, pairs := map[string]*Change{}, map[pair][]string{}, []pair{}
	for _, c := range b.Changes {
		others[c.Module] = c
	}
	known = true
	for _, c := range a.Changes {
		other := others[c.Module]
		if other == nil || c.Whole != nil || other.Whole != nil {
			continue
		}
		x, knownX := a.Scale(c)
		y, knownY := b.Scale(other)
		if p := (pair{numbersOf.ReplaceAllString(c.Module, ".{}"), x, y}); !knownX || !knownY {
			known = false
		} else if x != y {
			if modules[p] = append(modules[p], c.Module); len(modules[p]) == 1 {
				pairs = append(pairs, p)
			}
		}
	}
	for _, p := range pairs {
		key := "scale of " + modules[p][0]
		if n := len(modules[p]); n > 1 {
			key = fmt.Sprintf("scale of %d %s", n, p.module)
		}
		x, _ := json.Marshal(p.a)
		y, _ := json.Marshal(p.b)
		list = append(list, config.Difference{Key: key, A: x, B: y, Meaning: true})
	}
	return list, known
}
