package convert

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/text"
)

// local returns the path of file i of an output on the disk; empty in an object store.
func (r *Report) local(i int) string {
	switch {
	case checkpoint.IsRemote(r.Path):
		return ""
	case filepath.Base(r.Path) == r.Files[i]:
		return r.Path
	}
	return filepath.Join(r.Path, r.Files[i])
}

// Modelfile writes Ollama's Modelfile at path for an output in GGUF, and adds its command to Next. It has the parameters of
// generation_config.json, which Ollama does not read in the file, and further tokens that end a text. It has a TEMPLATE only
// if the output has none: since version 0.30 Ollama renders chats with the file's own.
func (r *Report) Modelfile(w io.Writer, path string) error {
	if r.Vocabulary == nil || len(r.Missing) > 0 {
		return errors.New("no Modelfile is written: Ollama needs a whole model with its vocabulary")
	}
	var b strings.Builder
	b.WriteString("# for Ollama 0.30 or newer, which takes the chat template of the GGUF file\n")
	if !r.Vocabulary.Template {
		b.Reset()
		b.WriteString("# the model has no chat template: it continues the prompt\nTEMPLATE {{ .Prompt }}\n")
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	for i := range r.Files {
		file, wrong := filepath.Abs(r.local(i))
		if err == nil && wrong == nil {
			file, err = filepath.Rel(dir, file)
		}
		if err != nil || wrong != nil || !plainLine(file) {
			return errors.New("a Modelfile cannot name " + text.Quote(file))
		}
		fmt.Fprintf(&b, "FROM ./%s\n", filepath.ToSlash(file))
	}
	for _, p := range r.Vocabulary.Sampling {
		fmt.Fprintf(&b, "PARAMETER %s %s\n", p.Name, p.Value)
	}
	for i, end := range r.Vocabulary.Ends {
		if i > 0 && plainLine(end.Text) && strings.TrimSpace(end.Text) == end.Text {
			fmt.Fprintf(&b, "PARAMETER stop %s\n", end.Text)
		}
	}
	name := strings.Map(func(r rune) rune { // of a model of Ollama's
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-", r) {
			return r
		}
		return '-'
	}, strings.ToLower(strings.TrimSuffix(r.Files[0], filepath.Ext(r.Files[0]))))
	r.Next = append(r.Next, "ollama create "+strings.Trim(name, "._-")+" -f "+text.Word(path))
	_, err = io.WriteString(w, b.String())
	return err
}

// plainLine reports whether Ollama's parser takes a text at the end of a line as it is.
func plainLine(s string) bool {
	return s != "" && s[0] != '"' && strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}
