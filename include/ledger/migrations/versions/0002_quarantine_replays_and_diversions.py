"""Quarantined records: replayed, discarded, diverted; which code decoded a micro-batch."""

from alembic import op
import sqlalchemy as sa

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column('micro_batches', sa.Column('decoder_version', sa.String(), nullable=True, comment='Version of the decoding code; null: not noted then'))
    op.create_table('replays',
    sa.Column('pipeline', sa.String(), nullable=False, comment='Name of the pipeline'),
    sa.Column('topic', sa.String(), nullable=False, comment='Name of the topic'),
    sa.Column('topic_id', sa.String(), nullable=False, comment="Kafka's topic id when the record was landed"),
    sa.Column('topic_partition', sa.BigInteger(), nullable=False, comment='Number of the topic partition'),
    sa.Column('record_offset', sa.BigInteger(), nullable=False, comment="The record's offset"),
    sa.Column('outcome', sa.String(), nullable=False, comment='archived, or empty: valid, with nothing to archive'),
    sa.Column('replayed_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False, comment='When it was replayed'),
    sa.Column('replayed_by', sa.String(), nullable=False, comment='user@host that replayed it'),
    sa.Column('decoder_version', sa.String(), nullable=False, comment='Version of the decoding code that it passed'),
    sa.Column('micro_batch_id', sa.BigInteger(), nullable=False, comment='The batch of query `replay` that holds its rows'),
    sa.Column('interval_id', sa.BigInteger(), nullable=True, comment='The interval that delivers its rows; null until the next one is pinned'),
    sa.ForeignKeyConstraint(['interval_id'], ['intervals.id'], name=op.f('fk_replays_interval_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['micro_batch_id'], ['micro_batches.id'], name=op.f('fk_replays_micro_batch_id')),
    sa.PrimaryKeyConstraint('pipeline', 'topic', 'topic_id', 'topic_partition', 'record_offset', name=op.f('pk_replays')),
    comment='Quarantined records that decoded later, each delivered once and for ever'
    )
    op.create_index(op.f('ix_replays_interval_id'), 'replays', ['interval_id'], unique=False)
    op.create_index(op.f('ix_replays_micro_batch_id'), 'replays', ['micro_batch_id'], unique=False)
    op.create_table('quarantine_notes',
    sa.Column('id', sa.BigInteger(), nullable=False, comment='Order in which they were noted'),
    sa.Column('pipeline', sa.String(), nullable=False, comment='Name of the pipeline'),
    sa.Column('topic', sa.String(), nullable=False, comment='Name of the topic'),
    sa.Column('topic_id', sa.String(), nullable=False, comment="Kafka's topic id when the record was landed"),
    sa.Column('topic_partition', sa.BigInteger(), nullable=False, comment='Number of the topic partition'),
    sa.Column('record_offset', sa.BigInteger(), nullable=False, comment="The record's offset"),
    sa.Column('kind', sa.String(), nullable=False, comment='discarded, or failed: a replay found it still bad'),
    sa.Column('noted_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False, comment='When it was noted'),
    sa.Column('noted_by', sa.String(), nullable=False, comment='user@host that discarded or replayed it'),
    sa.Column('reason', sa.String(), nullable=False, comment='Why it was discarded, or the reason code that the replay found'),
    sa.Column('detail', sa.String(), nullable=False, comment='What the replay found in detail'),
    sa.Column('decoder_version', sa.String(), nullable=False, comment='Version of the decoding code of the replay'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_quarantine_notes')),
    comment='Quarantined records: discarded by whom and why, and what a replay found; only ever added to'
    )
    op.create_index('ix_quarantine_notes_record', 'quarantine_notes', ['pipeline', 'topic', 'topic_partition', 'record_offset'], unique=False)
    op.create_table('diverted_records',
    sa.Column('pipeline', sa.String(), nullable=False, comment='Name of the pipeline'),
    sa.Column('topic', sa.String(), nullable=False, comment='Name of the topic'),
    sa.Column('topic_id', sa.String(), nullable=False, comment="Kafka's topic id when the record was landed"),
    sa.Column('topic_partition', sa.BigInteger(), nullable=False, comment='Number of the topic partition'),
    sa.Column('record_offset', sa.BigInteger(), nullable=False, comment="The record's offset"),
    sa.Column('reason', sa.String(), nullable=False, comment='What it made the decoder throw'),
    sa.Column('micro_batch_id', sa.BigInteger(), nullable=False, comment='The micro-batch that diverted it'),
    sa.ForeignKeyConstraint(['micro_batch_id'], ['micro_batches.id'], name=op.f('fk_diverted_records_micro_batch_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('pipeline', 'topic', 'topic_id', 'topic_partition', 'record_offset', name=op.f('pk_diverted_records')),
    comment='Records that make decoding throw: quarantined undecoded, and never decoded again'
    )
    op.create_index(op.f('ix_diverted_records_micro_batch_id'), 'diverted_records', ['micro_batch_id'], unique=False)
    op.create_table('batch_failures',
    sa.Column('pipeline', sa.String(), nullable=False, comment='Name of the pipeline'),
    sa.Column('query_id', sa.String(), nullable=False, comment="Spark's id of the query"),
    sa.Column('batch_id', sa.BigInteger(), nullable=False, comment="Spark's batch number within the query"),
    sa.Column('error_hash', sa.String(), nullable=False, comment='Hash of the error without its numbers'),
    sa.Column('query', sa.String(), nullable=False, comment='`archive`'),
    sa.Column('error', sa.String(), nullable=False, comment="The error's root cause, one line"),
    sa.Column('failures', sa.BigInteger(), nullable=False, comment='How often the micro-batch failed so'),
    sa.Column('first_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False, comment='When it first failed so'),
    sa.Column('last_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False, comment='When it last failed so'),
    sa.PrimaryKeyConstraint('pipeline', 'query_id', 'batch_id', 'error_hash', name=op.f('pk_batch_failures')),
    comment='Failed writes of micro-batches; after identical ones a record is searched'
    )


def downgrade() -> None:
    """Revert."""
    op.drop_index(op.f('ix_replays_interval_id'), table_name='replays')
    op.drop_index(op.f('ix_replays_micro_batch_id'), table_name='replays')
    op.drop_table('replays')
    op.drop_index('ix_quarantine_notes_record', table_name='quarantine_notes')
    op.drop_table('quarantine_notes')
    op.drop_index(op.f('ix_diverted_records_micro_batch_id'), table_name='diverted_records')
    op.drop_table('diverted_records')
    op.drop_table('batch_failures')
    op.drop_column('micro_batches', 'decoder_version')
