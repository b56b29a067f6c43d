package verifytest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/verify/verifytest"
)

// TestSchemaIsStrict: a document that a CI would refuse does not pass for one.
func TestSchemaIsStrict(t *testing.T) {
	t.Parallel()
	const suite = `<testsuite name="" tests="1" failures="0" errors="0"`
	for wrong, document := range map[string]string{
		"element":         `<testsuites><suite/></testsuites>`,
		"root":            suite + `/>`,
		"attribute":       `<testsuites file=""/>`,
		"child":           `<testsuites><testcase name=""/></testsuites>`,
		"no name":         `<testsuites>` + suite + `><testcase/></testsuite></testsuites>`,
		"no count":        `<testsuites><testsuite name=""/></testsuites>`,
		"text":            `<testsuites>x</testsuites>`,
		"time":            `<testsuites time="1e-3"/>`,
		"not well-formed": `<testsuites>`,
	} {
		_, err := verifytest.Schema(document)
		assert.Error(t, err, wrong)
	}
	_, err := verifytest.Schema(`<testsuites>` + suite + ` time="1,000.5"><properties/><testcase name=""><failure>x</failure></testcase></testsuite></testsuites>`)
	require.NoError(t, err)
}
