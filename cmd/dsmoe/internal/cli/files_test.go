package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func filled(content string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, content)
		return err
	}
}

// names lists a directory.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestOutFile: a name has the old content or the new one, and nothing else is left.
func TestOutFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "page.html")
	f, err := createFile(path)
	require.NoError(t, err)
	assert.NoFileExists(t, path)
	require.NoError(t, f.commit(filled("first")))
	f.discard()
	assert.Equal(t, []string{"page.html"}, names(t, dir))

	for name, end := range map[string]func(f *outFile){
		"discarded": func(f *outFile) { f.discard() },
		"not filled": func(f *outFile) {
			wrong := errors.New("no")
			assert.ErrorIs(t, f.commit(func(w io.Writer) error { filled("half")(w); return wrong }), wrong)
			f.discard()
		},
		"cannot be renamed": func(f *outFile) {
			f.name = filepath.Join(dir, "gone", "page.html")
			assert.ErrorContains(t, f.commit(filled("second")), "page.html: ")
		},
	} {
		f, err := createFile(path)
		require.NoError(t, err)
		end(f)
		assert.Equal(t, []string{"page.html"}, names(t, dir), name)
		assert.Equal(t, "first", read(t, path), name)
	}

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("page.html", link))
	f, err = createFile(link)
	require.NoError(t, err)
	require.NoError(t, f.commit(filled("through a link")))
	assert.Equal(t, "through a link", read(t, path))
	assert.Equal(t, []string{"link", "page.html"}, names(t, dir))
}

// TestOutFileRefuses what cannot be a file, before any work is done.
func TestOutFileRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o666))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	for name, want := range map[string]string{
		filepath.Join(dir, "gone", "x.xml"): "no such file or directory",
		filepath.Join(dir, "file", "x.xml"): "not a directory",
		filepath.Join(dir, "dangling"):      "cannot be replaced: not a regular file",
		dir:                                 "cannot be replaced: not a regular file",
		"/dev/null":                         "cannot be replaced: not a regular file",
		filepath.Join(dir, "new") + "/":     "not the name of a file",
		"":                                  "cannot be replaced: not a regular file",
	} {
		_, err := createFile(name)
		assert.ErrorContains(t, err, want, name)
	}
	assert.Equal(t, []string{"dangling", "file"}, names(t, dir))
}

// TestOutFileBesideInputs: a config stands for the checkpoint in its directory, whose files are not replaced; a list of
// tokens stands for itself.
func TestOutFileBesideInputs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors", "tokens.txt", "page.html"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o666))
	}
	for _, c := range []struct {
		input, out string
		refused    bool
	}{
		{"config.json", "model.safetensors", true}, {"config.json", "config.json", true}, {"config.json", "page.html", false},
		{"tokens.txt", "config.json", false}, {"tokens.txt", "tokens.txt", true},
		{"", "tokens.txt", true}, {"", "page.html", false},
	} {
		f, err := createFile(filepath.Join(dir, c.out), filepath.Join(dir, c.input))
		if c.refused {
			assert.ErrorContains(t, err, "is among the inputs of this command", c)
			continue
		}
		require.NoError(t, err, c)
		f.discard()
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}
