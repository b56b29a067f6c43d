package cli

import (
	"bytes"
	"io"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// raw is a report that quotes nothing.
type raw string

// WriteText writes it.
func (r raw) WriteText(w io.Writer) error {
	_, err := io.WriteString(w, string(r))
	return err
}

// TestReportsAreEscaped: what a report should have quoted is escaped on its way out.
func TestReportsAreEscaped(t *testing.T) {
	cmd := &cobra.Command{}
	var out bytes.Buffer
	cmd.SetOut(&out)
	require.NoError(t, Documents(nil).printAs(cmd, raw("a\x1b[2J\tb\n\xffc"), false))
	assert.Equal(t, `a\x1b[2J\tb`+"\n"+`\xffc`+"\n", out.String())
}
