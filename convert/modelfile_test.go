package convert

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
)

// TestModelfile: its lines, the command that takes it, and files that it cannot name.
func TestModelfile(t *testing.T) {
	dir := t.TempDir()
	r := &Report{Path: filepath.Join(dir, "out"), Files: []string{"My Model-Q4_K_M-00001-of-00002.gguf", "My Model-Q4_K_M-00002-of-00002.gguf"},
		Vocabulary: &format.Vocabulary{Template: true, Sampling: []format.Parameter{{Name: "top_p", Value: "0.95"}},
			Ends: []format.Token{{ID: 1, Text: "<eos>"}, {ID: 2, Text: "<|user|>"}, {ID: 3, Text: "\n"}, {ID: 4, Text: " x"}, {ID: 5, Text: `"`}}}}
	var b strings.Builder
	require.NoError(t, r.Modelfile(&b, filepath.Join(dir, "in", "Modelfile")))
	require.Equal(t, `# for Ollama 0.30 or newer, which takes the chat template of the GGUF file
FROM ./../out/My Model-Q4_K_M-00001-of-00002.gguf
FROM ./../out/My Model-Q4_K_M-00002-of-00002.gguf
PARAMETER top_p 0.95
PARAMETER stop <|user|>
`, b.String())
	require.Equal(t, []string{"ollama create my-model-q4_k_m-00001-of-00002 -f " + filepath.Join(dir, "in", "Modelfile")}, r.Next)
	r.Files[1] = "a\x1bb.gguf"
	require.ErrorContains(t, r.Modelfile(&b, "Modelfile"), "a Modelfile cannot name")
	r.Vocabulary = nil
	require.ErrorContains(t, r.Modelfile(&b, "Modelfile"), "no Modelfile is written")
}
