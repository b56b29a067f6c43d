package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/text/problem"
)

func TestManyFindingsAreCutInText(t *testing.T) {
	var many []Finding
	for i := range 200 {
		many = append(many, Note.Of(problem.Problem{File: fmt.Sprint("file", i), Cause: "odd"}))
	}
	var out strings.Builder
	require.NoError(t, WriteFindings(&out, many, 10))
	assert.Equal(t, 11, strings.Count(out.String(), "\n"))
	assert.Contains(t, out.String(), "… and 190 more; --json lists every finding")
}
