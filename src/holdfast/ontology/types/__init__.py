"""Types as users declare them and as the store describes them: classes, fields, annotations, schemas, JSON values."""
