package inspect

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
)

// AuditReport says what was checked, what could not be, and everything found.
type AuditReport struct {
	Path       string    `json:"path"`
	Clean      bool      `json:"clean"` // no findings
	Checked    []string  `json:"checked"`
	NotChecked []string  `json:"not_checked"`
	Findings   []Finding `json:"findings"`
}

// Audit holds the parts of a checkpoint against each other: the index against the
// shards, as reading them found, and every tensor's name, shape and dtype against
// the weights that the config implies. It goes as far as what could be read allows.
func Audit(c *Checkpoint) *AuditReport {
	found := append([]Finding{}, c.Findings...)
	found = append(found, c.mismatches()...)
	found = append(found, c.torchDType()...)
	a := &AuditReport{Path: c.Path, Findings: found}
	a.Clean = len(a.Findings) == 0
	a.Checked, a.NotChecked = c.scope()
	return a
}

// mismatches compares the tensors with the config's weights. If a file could not be
// read, nobody knows what is missing, so nothing is said to be.
func (c *Checkpoint) mismatches() []Finding {
	var e *model.MismatchError
	if c.Config == nil || !errors.As(model.Check(c.Config, headers{c}), &e) {
		return nil
	}
	if !c.complete() {
		e.Missing = nil
	}
	files := c.holders()
	var found []Finding
	for _, s := range e.Missing {
		found = append(found, Finding{Missing, "", s.Name, fmt.Sprintf("the config asks for it, shape %v", s.Shape), c.hint(s.Name)})
	}
	for _, x := range e.Wrong {
		found = append(found, c.wrong(x, files[x.Got.Name]))
	}
	for _, i := range e.Unexpected {
		found = append(found, Finding{Unexpected, files[i.Name], i.Name, fmt.Sprintf("the config has no use for it, shape %v", i.Shape), c.hint(i.Name)})
	}
	return found
}

func (c *Checkpoint) wrong(x model.Wrong, file string) Finding {
	if !slices.Equal(x.Got.Shape, x.Want) {
		return Finding{Shape, file, x.Got.Name, fmt.Sprintf("%v, the config asks for %v", x.Got.Shape, x.Want), c.hint(x.Got.Name)}
	}
	return Finding{DType, file, x.Got.Name, fmt.Sprintf("%s, the model computes with F32, F16 and BF16", x.Got.DType), ""}
}

// holders maps each tensor to the file that holds it.
func (c *Checkpoint) holders() map[string]string {
	files := map[string]string{}
	for _, t := range c.tensors() {
		files[t.Name] = t.File
	}
	return files
}

// complete says whether every weight file that there should be was read.
func (c *Checkpoint) complete() bool {
	for _, f := range c.Findings {
		if f.Kind == Broken && f.File != configFile && !c.read(f.File) {
			return false
		}
	}
	return len(c.Files) > 0
}

// read says whether file is a weight file whose header was read, or the index.
func (c *Checkpoint) read(file string) bool {
	if c.Index != nil && file == c.Index.File {
		return true
	}
	return slices.ContainsFunc(c.Files, func(f File) bool { return f.Name == file })
}

// torchDType notes a torch_dtype that no tensor has.
func (c *Checkpoint) torchDType() []Finding {
	tensors := c.tensors()
	if c.Config == nil || c.Config.TorchDType == "" || len(tensors) == 0 {
		return nil
	}
	want := model.TorchDType(c.Config)
	if slices.ContainsFunc(tensors, func(t Tensor) bool { return t.DType == want }) {
		return nil
	}
	return []Finding{{Note, configFile, "", fmt.Sprintf("torch_dtype is %s, but no tensor is %s", c.Config.TorchDType, want),
		fmt.Sprintf("transformers will convert the weights when it loads them; they are %s", c.dtypes())}}
}

// dtypes names the dtypes of the tensors.
func (c *Checkpoint) dtypes() string {
	var names []string
	for _, t := range c.tensors() {
		if name := t.DType.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// hint says on which fields of the config it depends whether a tensor is due.
func (c *Checkpoint) hint(name string) string {
	template, numbers := split(name)
	for _, p := range model.FamilyOf(c.Config).Params {
		if strings.NewReplacer("{l}", hole, "{e}", hole).Replace(p.Name) == template {
			if len(numbers) > 0 && numbers[0] >= c.Config.NumHiddenLayers {
				return fmt.Sprintf("num_hidden_layers is %d", c.Config.NumHiddenLayers)
			}
			return "see " + settings(c.Config, p.Module)
		}
	}
	return fmt.Sprintf("no weight of model_type %s has this name", c.Config.ModelType)
}

// setting is a field of the config and its value.
type setting struct {
	key   string
	value any
}

// settings lists the fields of the config that decide about a module's weights.
func settings(c *config.Config, m model.Module) string {
	var text []string
	for _, s := range deciding(c, m) {
		text = append(text, fmt.Sprintf("%s %v", s.key, s.value))
	}
	return strings.Join(text, ", ")
}

func deciding(c *config.Config, m model.Module) []setting {
	hidden := setting{"hidden_size", c.HiddenSize}
	vocab := setting{"vocab_size", c.VocabSize}
	width := setting{"moe_intermediate_size", c.MoEIntermediateSize}
	layers := []setting{{"n_routed_experts", c.NRoutedExperts},
		{"first_k_dense_replace", c.FirstKDenseReplace}, {"moe_layer_freq", c.MoELayerFreq}}
	switch m {
	case model.Embedding:
		return []setting{vocab, hidden}
	case model.Head:
		return []setting{{"tie_word_embeddings", c.TieWordEmbeddings}, vocab, hidden}
	case model.Attention:
		return []setting{{"num_attention_heads", c.NumAttentionHeads}, {"num_key_value_heads", c.NumKeyValueHeads},
			{"attention_bias", c.AttentionBias}, hidden}
	case model.DenseMLP:
		return append(layers, setting{"intermediate_size", c.IntermediateSize}, hidden)
	case model.Router:
		return append(layers, hidden)
	case model.RoutedExperts:
		return append(layers, width, hidden)
	case model.SharedExperts:
		return append(layers, setting{"n_shared_experts", c.NSharedExperts}, width, hidden)
	}
	return []setting{hidden}
}

// scope says what Audit could check of c, and what it could not.
func (c *Checkpoint) scope() (checked, not []string) {
	checked, not = []string{}, []string{}
	tensors := len(c.tensors())
	if c.Index != nil {
		checked = append(checked, fmt.Sprintf("%s: %s in %s", plain(c.Index.File), plural(c.Index.Tensors, "name"), plural(c.Index.Shards, "file")))
	}
	if len(c.Files) > 0 {
		checked = append(checked, fmt.Sprintf("headers of %s: %s, %s", plural(len(c.Files), "file"), plural(tensors, "tensor"), iec(c.bytes())))
	}
	switch {
	case c.Config == nil:
		not = append(not, "the tensors against the config: config.json cannot be used")
	case tensors == 0:
		not = append(not, "the tensors against the config: there are none")
	default:
		checked = append(checked, fmt.Sprintf("names, shapes and dtypes against the %s of config.json",
			plural(int(model.CountModules(c.Config).Sum().Tensors), "weight")))
	}
	if c.Config != nil && tensors > 0 && !c.complete() {
		not = append(not, "which weights are missing: not every file could be read")
	}
	return checked, append(not, "the values of the weights")
}

// bytes returns the size of all tensors.
func (c *Checkpoint) bytes() (n int64) {
	for _, t := range c.tensors() {
		n += t.Bytes
	}
	return n
}

// WriteText writes the findings, those of a kind that differ only in numbers as
// one, and what was checked.
func (a *AuditReport) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s\n", plain(a.Path), verdict(a.Findings)); err != nil {
		return err
	}
	if err := writeFindings(w, a.Findings, maxLines); err != nil {
		return err
	}
	t := table{align: "ll"}
	for _, text := range a.Checked {
		t.add("checked", text)
	}
	for _, text := range a.NotChecked {
		t.add("not checked", text)
	}
	return t.write(w)
}

// verdict counts findings, notes apart.
func verdict(findings []Finding) string {
	notes := 0
	for _, f := range findings {
		if f.Kind == Note {
			notes++
		}
	}
	switch n := len(findings) - notes; {
	case len(findings) == 0:
		return "clean"
	case notes == 0:
		return plural(n, "problem")
	case n == 0:
		return "no problems, " + plural(notes, "note")
	default:
		return plural(n, "problem") + ", " + plural(notes, "note")
	}
}
